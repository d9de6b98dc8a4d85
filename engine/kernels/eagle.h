// An EAGLE-3 head in one call, a level at a time or whole drafts. engine/heads/eagle.py is its specification.
#pragma once

#include <numeric>

#include "decoder.h"

namespace specd {

extern "C" struct EagleHead {
    Decoder decoder;          // of one layer, whose qkv reads 2 H numbers and whose norm_in nobody reads
    const float* norm_token;  // [H]
    const float* norm_hidden; // [H]
    int64_t normed_residual;  // whether the residual stream begins with the normed hidden state
    int64_t normed_output;    // whether what is handed on is normed
    const int64_t* targets;   // [D] the target's token for each of the head's
};

extern "C" struct EagleStep {
    Step step;           // of chains: one row of each span is wanted, its last; it has no taps
    const bf16* hidden;  // [T, H] what was understood of the position before each row's token
    bf16* handed_on;     // [R, H] the same for those who go on from the rows that are wanted
};

#if SPECD_SQUEEZED

class EagleForward : public Forward {
   public:
    EagleForward(const EagleHead& head, const EagleStep& step)
        : Forward(head.decoder, step.step, 2 * head.decoder.hidden), head_(head), all_(step.step), io_(step) {
        if (!s_.spans.sight) narrow();
    }

    void run() {
        plan();
        const DecoderLayer& layer = d_.layers[0];
#pragma omp parallel
        {
            Worker& me = worker();
            Tiles tiles(all_.rows);
            enter();
            store(layer.qkv, normed_, all_.rows, qkv_, me);
            place(layer, all_);
            if (s_.rows < all_.rows) gather();
            finish(layer, me);
            say(me);
            hand_on();
        }
    }

   private:
    // From the attention on, only the rows that are wanted matter: of the others, keys and values do. A tree's rows stay
    // together, since what they see is told by their places in the span.
    void narrow() {
        const int64_t rows = s_.logits;
        for (int64_t row = 0; row < rows; row++) {
            positions_.push_back(s_.positions[s_.logit_rows[row]]);
            places_.push_back(row);
        }
        ones_.assign(rows, 1);
        s_.positions = positions_.data();
        s_.logit_rows = s_.spans.first_row = places_.data();
        s_.spans.rows = ones_.data();
        s_.spans.position = positions_.data();
        s_.rows = rows;
    }

    void enter() {
        const int64_t size = d_.hidden;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < all_.rows; row++) {
            const bf16* understood = io_.hidden + row * size;
            bf16* to = normed_ + row * 2 * size;
            norm(d_.embedding + all_.tokens[row] * size, head_.norm_token, to);
            norm(understood, head_.norm_hidden, to + size);
            const bf16* residual = head_.normed_residual ? to + size : understood;
            for (int64_t i = 0; i < size; i++) hidden_[row * size + i] = widen(residual[i]);
        }
    }

    void norm(const bf16* x, const float* weight, bf16* out) const {
        float squares = 0;
        for (int64_t i = 0; i < d_.hidden; i++) squares += widen(x[i]) * widen(x[i]);
        const float scale = 1.0f / std::sqrt(squares / d_.hidden + d_.eps);
        for (int64_t i = 0; i < d_.hidden; i++) narrow_to(widen(x[i]) * scale * weight[i], out[i]);
    }

    static void narrow_to(float x, bf16& out) { specd::narrow(x, out); }

    // The queries and the residual stream of the rows that are wanted, moved together.
    void gather() {
        const int64_t width = (d_.heads + 2 * d_.kv_heads) * d_.dim;
#pragma omp single
        for (int64_t row = 0; row < s_.rows; row++) {
            const int64_t from = all_.logit_rows[row];
            if (from == row) continue;
            std::memmove(qkv_ + row * width, qkv_ + from * width, d_.heads * d_.dim * sizeof(bf16));
            std::memmove(hidden_ + row * d_.hidden, hidden_ + from * d_.hidden, d_.hidden * sizeof(float));
        }
    }

    void hand_on() {
        if (head_.normed_output) {
            norm_rows(hidden_, s_.logit_rows, d_.norm, io_.handed_on, s_.logits, d_.hidden, d_.eps);
            return;
        }
#pragma omp for schedule(static)
        for (int64_t row = 0; row < s_.logits; row++) {
            const float* from = hidden_ + s_.logit_rows[row] * d_.hidden;
            for (int64_t i = 0; i < d_.hidden; i++) specd::narrow(from[i], io_.handed_on[row * d_.hidden + i]);
        }
    }

    const EagleHead& head_;
    const Step& all_;  // every row; s_ has those that are wanted
    const EagleStep& io_;
    std::vector<int64_t> positions_, places_, ones_;
};

// Sixteen of a row's logits, or so many as there are; what is no finite number counts as hardly likely, and what is not
// there as impossible.
inline __m512 said16(const bf16* from, int64_t count) {
    constexpr int kOdd = 0x99;  // quiet and signalling NaN, both infinities
    const __mmask16 here = count < 16 ? static_cast<__mmask16>((1 << count) - 1) : 0xFFFF;
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(here, from)), 16);
    const __m512 x = _mm512_castsi512_ps(bits);
    const __m512 told = _mm512_mask_mov_ps(x, _mm512_fpclass_ps_mask(x, kOdd), _mm512_set1_ps(-1e4f));
    return _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), here, told);
}

// The likeliest tokens after a row.
class Likeliest {
   public:
    // most: one at least.
    void find(const bf16* row, int64_t size, int64_t most) {
        most = std::min(most, size);
        tokens.resize(most);
        logs.resize(most);
        int64_t found = 0;
        float beaten = -INFINITY;
        for (int64_t at = 0; at < size; at += 16) {
            const __m512 x = said16(row + at, size - at);
            __mmask16 better = _mm512_cmp_ps_mask(x, _mm512_set1_ps(beaten), _CMP_GT_OQ);
            if (!better) continue;
            alignas(64) float values[16];
            _mm512_store_ps(values, x);
            for (; better; better &= better - 1) {
                const int lane = __builtin_ctz(better);
                found = insert(at + lane, values[lane], found);
            }
            if (found == most) beaten = logs[most - 1];
        }
        normalise(row, size);
    }

    std::vector<int64_t> tokens;  // falling, the first among equals first
    std::vector<float> logs;      // of their probabilities

   private:
    // Returns how many are found now.
    int64_t insert(int64_t token, float value, int64_t found) {
        const int64_t most = static_cast<int64_t>(logs.size());
        if (found == most && value <= logs[most - 1]) return found;
        int64_t to = found < most ? found : most - 1;
        for (; to > 0 && logs[to - 1] < value; to--) {
            logs[to] = logs[to - 1];
            tokens[to] = tokens[to - 1];
        }
        logs[to] = value;
        tokens[to] = token;
        return std::min(found + 1, most);
    }

    void normalise(const bf16* row, int64_t size) {
        const float top = logs[0];
        const __m512 scale = _mm512_set1_ps(1.44269504088896341f), from = _mm512_set1_ps(top);
        __m512 sums = _mm512_setzero_ps();
        for (int64_t at = 0; at < size; at += 16) {
            const __m512 x = _mm512_sub_ps(said16(row + at, size - at), from);
            sums = _mm512_add_ps(sums, power_of_two(_mm512_mul_ps(x, scale)));
        }
        const float all = std::log(_mm512_reduce_add_ps(sums));
        for (float& log : logs) log = log - top - all;
    }
};

// A draft while it grows; engine/draft/tree.py is its specification. One node wide, it is a chain.
class GrowingTree {
   public:
    static constexpr int64_t kRoot = -1;

    struct Node {
        int64_t token;  // as the head numbers them
        int64_t parent;
        int64_t row;     // of the parent, among those that it grew from
        double score;    // logarithm of the probability of the whole way
        uint64_t sight;  // see Spans; once something is to grow from it
    };

    GrowingTree(int64_t nodes, int64_t width) : most_(nodes), width_(width) {}

    const Node& operator[](int64_t node) const { return nodes_[node]; }
    int64_t rows() const { return static_cast<int64_t>(frontier_.size()); }
    int64_t width() const { return width_; }

    // Nodes that the next level grows from, rising; the root at first.
    const std::vector<int64_t>& frontier() const { return frontier_; }

    // Nodes that something grew from or is to, the frontier's last: so their keys lie, behind the root's.
    int64_t grown() const { return grown_; }

    // Takes what may follow each of rows() rows.
    void grow(const Likeliest* said) {
        rank(said);
        std::vector<int64_t> kept, next;
        const int64_t old = static_cast<int64_t>(kept_.size());
        for (int64_t place = 0; place < old; place++) {
            if (fate_[place] != kFallen) kept.push_back(kept_[place]);
        }
        int64_t place = old;
        for (int64_t row = 0; row < rows(); row++) {
            for (const int64_t token : said[row].tokens) {
                const Fate fate = fate_[place];
                if (fate != kFallen) kept.push_back(add(token, row, scores_[place]));
                if (fate == kGrows) next.push_back(kept.back());
                place++;
            }
        }
        kept_ = std::move(kept);
        frontier_ = std::move(next);
        for (const int64_t node : frontier_) {
            const int64_t parent = nodes_[node].parent;
            nodes_[node].sight = (parent == kRoot ? 1 : nodes_[parent].sight) | uint64_t{1} << ++grown_;
        }
    }

    // The nodes that are kept, level by level, in room for as many as may be. Returns how many.
    int64_t write(const int64_t* targets, int64_t* tokens, int64_t* parents) const {
        std::vector<int64_t> places(nodes_.size());
        int64_t count = 0;
        for (const int64_t node : kept_) {
            const Node& own = nodes_[node];
            tokens[count] = targets[own.token];
            parents[count] = own.parent == kRoot ? kRoot : places[own.parent];
            places[node] = count++;
        }
        return count;
    }

   private:
    enum Fate : char { kFallen, kStays, kGrows };

    // What becomes of each node: of those that are kept, and then of what may follow the rows. Among equals those found
    // first are better.
    void rank(const Likeliest* said) {
        scores_.clear();
        for (const int64_t node : kept_) scores_.push_back(nodes_[node].score);
        const int64_t old = static_cast<int64_t>(scores_.size());
        for (int64_t row = 0; row < rows(); row++) {
            const double reached = frontier_[row] == kRoot ? 0.0 : nodes_[frontier_[row]].score;
            for (const float log : said[row].logs) scores_.push_back(reached + log);
        }
        order_.resize(scores_.size());
        std::iota(order_.begin(), order_.end(), 0);
        std::stable_sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return scores_[a] > scores_[b]; });
        if (static_cast<int64_t>(order_.size()) > most_) order_.resize(most_);
        fate_.assign(scores_.size(), kFallen);
        int64_t fresh = 0;
        for (const int64_t place : order_) fate_[place] = place >= old && fresh++ < width_ ? kGrows : kStays;
    }

    int64_t add(int64_t token, int64_t row, double score) {
        nodes_.push_back({token, frontier_[row], row, score, 0});
        return static_cast<int64_t>(nodes_.size()) - 1;
    }

    int64_t most_, width_, grown_ = 0;
    std::vector<Node> nodes_;
    std::vector<int64_t> kept_, frontier_{kRoot};
    std::vector<double> scores_;  // while it ranks
    std::vector<int64_t> order_;
    std::vector<Fate> fate_;
};

extern "C" struct EagleDrafts {
    const int64_t* levels;  // [B] one at least
    const int64_t* nodes;   // [B] at most, of all levels together
    const int64_t* widths;  // [B] how many of a level grow, with as many children each; width * levels <= nodes
    int64_t most;           // M, the greatest of nodes
    int64_t* tokens;        // [B, M] the target's
    int64_t* parents;       // [B, M]
    int64_t* counts;        // [B] nodes that were found
};

// Trees and chains of what the head finds likeliest, all texts at once. Each level's forward has the rows that are new in
// it: their ancestors' keys lie in the places behind the text, in the order in which they grew.
class EagleTrees {
   public:
    // first: what is to be computed before anything grows, with block tables that hold the drafts' places as well, and
    // room for the rows of the widest level.
    EagleTrees(const EagleHead& head, const EagleStep& first, const EagleDrafts& drafts)
        : head_(head), d_(head.decoder), spans_(first.step.spans), drafts_(drafts), step_(first) {
        for (int64_t b = 0; b < spans_.count; b++) {
            trees_.emplace_back(drafts.nodes[b], drafts.widths[b]);
            active_.push_back(b);
        }
    }

    void draw() {
        for (int64_t level = 1; !active_.empty(); level++) {
            EagleForward(head_, step_).run();
            look();
            clear();
            int64_t row = 0;
            for (const int64_t b : active_) {
                const int64_t rows = trees_[b].rows();
                trees_[b].grow(said_.data() + row);
                if (level < drafts_.levels[b]) go_on(b, level, row);
                row += rows;
            }
            aim();
        }
        for (int64_t b = 0; b < spans_.count; b++) {
            const int64_t at = b * drafts_.most;
            drafts_.counts[b] = trees_[b].write(head_.targets, drafts_.tokens + at, drafts_.parents + at);
        }
    }

   private:
    // What the rows of the last forward say.
    void look() {
        wanted_.clear();
        for (const int64_t b : active_) wanted_.insert(wanted_.end(), trees_[b].rows(), trees_[b].width());
        const int64_t rows = static_cast<int64_t>(wanted_.size()), size = d_.head.out;
        if (static_cast<int64_t>(said_.size()) < rows) said_.resize(rows);
#pragma omp parallel for schedule(static) if (rows > 1)
        for (int64_t row = 0; row < rows; row++) said_[row].find(step_.step.out + row * size, size, wanted_[row]);
    }

    void clear() {
        for (auto* column : {&next_, &tokens_, &positions_, &slots_, &first_, &rows_, &ends_, &grown_, &tables_}) {
            column->clear();
        }
        sights_.clear();
        hidden_.clear();
    }

    // The next level's rows of a text, if it has any. first: the first row that they grow from.
    void go_on(int64_t b, int64_t level, int64_t first) {
        const GrowingTree& tree = trees_[b];
        if (tree.rows() == 0) return;
        const int64_t root = spans_.end[b] - 1, end = root + tree.grown() + 1;
        const int64_t* table = spans_.tables + b * spans_.table_stride;
        next_.push_back(b);
        first_.push_back(static_cast<int64_t>(tokens_.size()));
        rows_.push_back(tree.rows());
        ends_.push_back(end);
        grown_.push_back(end - root - tree.rows());
        tables_.insert(tables_.end(), table, table + spans_.table_stride);
        int64_t place = end - tree.rows();
        for (const int64_t node : tree.frontier()) {
            const bf16* understood = step_.handed_on + (first + tree[node].row) * d_.hidden;
            tokens_.push_back(head_.targets[tree[node].token]);
            positions_.push_back(root + level);
            slots_.push_back(table[place / d_.block_size] * d_.block_size + place % d_.block_size);
            sights_.push_back(tree[node].sight);
            hidden_.insert(hidden_.end(), understood, understood + d_.hidden);
            place++;
        }
    }

    // Lets the step point to the rows of the next level.
    void aim() {
        active_ = next_;
        Step& s = step_.step;
        s.tokens = tokens_.data();
        s.positions = positions_.data();
        s.slots = slots_.data();
        s.rows = s.logits = static_cast<int64_t>(tokens_.size());
        all_.resize(tokens_.size());
        std::iota(all_.begin(), all_.end(), 0);
        s.logit_rows = all_.data();
        s.spans = {tables_.data(),    spans_.table_stride, first_.data(), rows_.data(),
                   ends_.data(),      positions_.data(),   sights_.data(), static_cast<int64_t>(active_.size()),
                   spans_.begin,      grown_.data()};
        step_.hidden = hidden_.data();
    }

    const EagleHead& head_;
    const Decoder& d_;
    const Spans spans_;  // of the first forward
    const EagleDrafts& drafts_;
    EagleStep step_;
    std::vector<GrowingTree> trees_;
    std::vector<Likeliest> said_;  // by row
    std::vector<int64_t> active_, wanted_, all_, next_, tokens_, positions_, slots_, first_, rows_, ends_, grown_, tables_;
    std::vector<uint64_t> sights_;
    std::vector<bf16> hidden_;
};

#endif  // SPECD_SQUEEZED

}  // namespace specd
