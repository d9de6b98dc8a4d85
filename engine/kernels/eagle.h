// An EAGLE-3 head in one call, a level at a time or a whole chain. engine/heads/eagle.py is its specification.
#pragma once

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
    Step step;        // of chains: one row of each span is wanted, its last; it has no taps
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

// The row's greatest, the first among equals.
inline int64_t greatest(const bf16* row, int64_t size) {
    int64_t best = 0;
    float top = -INFINITY;
    for (int64_t i = 0; i < size; i++) {
        const float value = widen(row[i]);
        if (value > top) {
            top = value;
            best = i;
        }
    }
    return best;
}

// Chains of what the head finds likeliest, all spans at once.
class EagleChains {
   public:
    // first: what is to be computed before the chains begin, with block tables that hold the chains' places as well.
    EagleChains(const EagleHead& head, const EagleStep& first)
        : head_(head), d_(head.decoder), spans_(first.step.spans), step_(first), ones_(spans_.count, 1) {
        for (int64_t b = 0; b < spans_.count; b++) rows_.push_back(b);
        active_ = rows_;
    }

    // levels [B]: how long each is to be, one at least; said [B, most]: the target's tokens.
    void draw(const int64_t* levels, int64_t most, int64_t* said) {
        for (int64_t level = 0; !active_.empty(); level++) {
            EagleForward(head_, step_).run();
            clear();
            for (size_t row = 0; row < active_.size(); row++) {
                const int64_t b = active_[row];
                const int64_t token = head_.targets[greatest(step_.step.out + row * d_.head.out, d_.head.out)];
                said[b * most + level] = token;
                if (level + 1 < levels[b]) go_on(b, token, spans_.end[b] + level, step_.handed_on + row * d_.hidden);
            }
            aim();
        }
    }

   private:
    void clear() {
        for (auto* column : {&next_, &tokens_, &places_, &slots_, &ends_, &tables_}) column->clear();
        hidden_.clear();
    }

    // The next level's row of a span.
    void go_on(int64_t b, int64_t token, int64_t place, const bf16* hidden) {
        const int64_t* table = spans_.tables + b * spans_.table_stride;
        next_.push_back(b);
        tokens_.push_back(token);
        places_.push_back(place);
        slots_.push_back(table[place / d_.block_size] * d_.block_size + place % d_.block_size);
        ends_.push_back(place + 1);
        tables_.insert(tables_.end(), table, table + spans_.table_stride);
        hidden_.insert(hidden_.end(), hidden, hidden + d_.hidden);
    }

    // Lets the step point to the rows of the next level.
    void aim() {
        active_ = next_;
        const int64_t count = static_cast<int64_t>(active_.size());
        Step& s = step_.step;
        s.tokens = tokens_.data();
        s.positions = places_.data();
        s.slots = slots_.data();
        s.rows = s.logits = count;
        s.logit_rows = rows_.data();
        s.spans = {tables_.data(), spans_.table_stride, rows_.data(), ones_.data(),   ends_.data(),
                   places_.data(), nullptr,             count,        spans_.begin};
        step_.hidden = hidden_.data();
    }

    const EagleHead& head_;
    const Decoder& d_;
    const Spans spans_;  // of the first level
    EagleStep step_;
    std::vector<int64_t> rows_, ones_, active_, next_, tokens_, places_, slots_, ends_, tables_;
    std::vector<bf16> hidden_;
};

#endif  // SPECD_SQUEEZED

}  // namespace specd
