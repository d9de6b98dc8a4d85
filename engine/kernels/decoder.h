// A whole forward of llama blocks in one call: one parallel region, no Python between the operations.
// engine/model/lean.py is its specification, operation by operation. It rounds in fewer places: the residual stream is
// in float32, so that near ties between tokens fall as they would without rounding more often.
#pragma once

#include <omp.h>

#include <memory>

#include "attention.h"
#include "attention_long.h"
#include "attention_tiles.h"
#include "common.h"
#include "squeezed.h"

namespace specd {

extern "C" struct DecoderLayer {
    const float* norm_in;    // [H]
    const float* norm_mid;   // [H]
    SqueezedLinear qkv;      // heads + 2 kv_heads heads of dim
    SqueezedLinear out;
    SqueezedLinear gate_up;  // strip s: gate 16 s .. 16 s + 15, then up of the same
    SqueezedLinear down;
    bf16* keys;              // [slots, kv_heads, dim], the pool's
    bf16* values;
    int64_t window;          // 0: none
    float scaling;
};

extern "C" struct Decoder {
    const DecoderLayer* layers;
    int64_t count;
    const bf16* embedding;   // [V, H]
    const float* cosine;     // [positions, dim]
    const float* sine;
    const float* norm;       // [H]
    SqueezedLinear head;
    int64_t hidden, heads, kv_heads, dim, intermediate, block_size;
    float eps;
};

extern "C" struct Step {
    const int64_t* tokens;      // [T]
    const int64_t* positions;   // [T]
    const int64_t* slots;       // [T]
    int64_t rows;               // T
    Spans spans;
    const int64_t* logit_rows;  // [R]
    int64_t logits;             // R
    bf16* out;                  // [R, V]
    const int64_t* taps;        // [tap_count] rising: hidden states that are wanted, see engine/model/taps.py
    int64_t tap_count;
    bf16* tapped;               // [tap_count, T, H]
};

#if SPECD_SQUEEZED

inline void norm_rows(const float* x, const int64_t* pick, const float* weight, bf16* out, int64_t rows, int64_t size,
                      float eps) {
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const float* from = x + (pick ? pick[row] : row) * size;
        float squares = 0;
        for (int64_t i = 0; i < size; i++) squares += from[i] * from[i];
        const float scale = 1.0f / std::sqrt(squares / size + eps);
        for (int64_t i = 0; i < size; i++) narrow(from[i] * scale * weight[i], out[row * size + i]);
    }
}

// What a thread computes with.
struct Worker {
    Scratch strips;
    std::vector<float> heads;
#if SPECD_AMX
    TileAttention attention;
    LongAttention long_attention;
#endif
};

class Forward {
   public:
    Forward(const Decoder& decoder, const Step& step) : Forward(decoder, step, decoder.hidden) {}

    void run() {
        plan();
#pragma omp parallel
        {
            Worker& me = worker();
            Tiles tiles(s_.rows);
            embed();
            for (int64_t i = 0; i < d_.count; i++) {
                tap(i);
                layer(d_.layers[i], me);
            }
            tap(d_.count);
            tap(d_.count + 1);
            say(me);
        }
    }

   protected:
    // inputs: of the first linear, at most
    Forward(const Decoder& decoder, const Step& step, int64_t inputs) : d_(decoder), s_(step) {
        const int64_t rows = padded_rows(std::max(s_.rows, s_.logits));
        const int64_t width = (d_.heads + 2 * d_.kv_heads) * d_.dim;
        sizes_[0] = rows * inputs;
        sizes_[1] = rows * width;
        sizes_[2] = rows * d_.heads * d_.dim;
        sizes_[3] = rows * d_.intermediate;
        static std::vector<bf16> workspace;  // one forward at a time: the engine's loop is its only caller
        int64_t total = 0;
        for (int64_t size : sizes_) total += size;
        if (static_cast<int64_t>(workspace.size()) < total) workspace.assign(total, bf16{0});
        normed_ = workspace.data();
        qkv_ = normed_ + sizes_[0];
        attended_ = qkv_ + sizes_[1];
        gated_ = attended_ + sizes_[2];
        static std::vector<float> residual;
        if (static_cast<int64_t>(residual.size()) < rows * d_.hidden) residual.assign(rows * d_.hidden, 0.0f);
        hidden_ = residual.data();
        auto& all = workers();
        while (all.size() < static_cast<size_t>(omp_get_max_threads())) all.push_back(std::make_unique<Worker>());
    }

    // Not thread_local: finding one of those is a call, each time.
    static std::vector<std::unique_ptr<Worker>>& workers() {
        static std::vector<std::unique_ptr<Worker>> all;
        return all;
    }

    // Of the thread that asks, in a parallel region.
    static Worker& worker() { return *workers()[omp_get_thread_num()]; }

    // The logits of the rows that are wanted.
    void say(Worker& me) {
        norm_rows(hidden_, s_.logit_rows, d_.norm, normed_, s_.logits, d_.hidden, d_.eps);
        store(d_.head, normed_, s_.logits, s_.out, me);
    }

    // What `layers` layers have made of the rows, if somebody asked for it; one more than there are: that, normed.
    void tap(int64_t layers) {
        for (int64_t t = 0; t < s_.tap_count; t++) {
            if (s_.taps[t] != layers) continue;
            bf16* out = s_.tapped + t * s_.rows * d_.hidden;
            if (layers > d_.count) {
                norm_rows(hidden_, nullptr, d_.norm, out, s_.rows, d_.hidden, d_.eps);
            } else {
#pragma omp for schedule(static)
                for (int64_t i = 0; i < s_.rows * d_.hidden; i++) narrow(hidden_[i], out[i]);
            }
        }
    }

    void embed() {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < s_.rows; row++) {
            const bf16* from = d_.embedding + s_.tokens[row] * d_.hidden;
            for (int64_t i = 0; i < d_.hidden; i++) hidden_[row * d_.hidden + i] = widen(from[i]);
        }
    }

    void layer(const DecoderLayer& l, Worker& me) {
        norm_rows(hidden_, nullptr, l.norm_in, normed_, s_.rows, d_.hidden, d_.eps);
        store(l.qkv, normed_, s_.rows, qkv_, me);
        place(l, s_);
        finish(l, me);
    }

    // A layer from its attention on, whose queries and keys are in place.
    void finish(const DecoderLayer& l, Worker& me) {
        attend(l, me);
        add(l.out, attended_, me);
        norm_rows(hidden_, nullptr, l.norm_mid, normed_, s_.rows, d_.hidden, d_.eps);
        multiply(l.gate_up, normed_, s_.rows, me.strips,
                 [&](int64_t strip, int64_t first, int64_t count, const float* sums) {
                     for (int64_t row = 0; row < count; row++) {
                         bf16* to = gated_ + (first + row) * d_.intermediate + strip * kTile;
                         const __m512 gate = rounded(sums + row * kStrip), up = rounded(sums + row * kStrip + kTile);
                         const __m512 power = _mm512_mul_ps(gate, _mm512_set1_ps(-1.44269504088896341f));
                         const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), power_of_two(power));
                         narrow16(_mm512_mul_ps(_mm512_div_ps(gate, below), up), to);
                     }
                 });
        add(l.down, gated_, me);
    }

    // Sixteen sums as bf16 would hold them.
    static __m512 rounded(const float* sums) {
        bf16 narrow[kTile];
        narrow16(_mm512_load_ps(sums), narrow);
        return widen16(narrow);
    }

    void store(const SqueezedLinear& linear, const bf16* x, int64_t rows, bf16* y, Worker& me) {
        multiply(linear, x, rows, me.strips,
                 [&](int64_t strip, int64_t first, int64_t count, const float* sums) {
                     store_strip(linear, strip, first, count, sums, y);
                 });
    }

    // hidden += linear(x)
    void add(const SqueezedLinear& linear, const bf16* x, Worker& me) {
        multiply(linear, x, s_.rows, me.strips,
                 [&](int64_t strip, int64_t first, int64_t count, const float* sums) {
                     const int64_t columns = std::min(kStrip, linear.out - strip * kStrip);
                     for (int64_t row = 0; row < count; row++) {
                         float* to = hidden_ + (first + row) * d_.hidden + strip * kStrip;
                         for (int64_t c = 0; c < columns; c++) to[c] += sums[row * kStrip + c];
                     }
                 });
    }

    // Rotates queries and keys, and stores keys and values in their slots.
    void place(const DecoderLayer& l, const Step& step) {
        const int64_t width = (d_.heads + 2 * d_.kv_heads) * d_.dim, size = d_.kv_heads * d_.dim;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < step.rows; row++) {
            bf16* at = qkv_ + row * width;
            const float* cosine = d_.cosine + step.positions[row] * d_.dim;
            const float* sine = d_.sine + step.positions[row] * d_.dim;
            for (int64_t h = 0; h < d_.heads + d_.kv_heads; h++) rotate_head(at + h * d_.dim, cosine, sine, d_.dim);
            const bf16* key = at + d_.heads * d_.dim;
            std::memcpy(l.keys + step.slots[row] * size, key, size * sizeof(bf16));
            std::memcpy(l.values + step.slots[row] * size, key + size, size * sizeof(bf16));
        }
    }

    void attend(const DecoderLayer& l, Worker& me) {
        const int64_t width = (d_.heads + 2 * d_.kv_heads) * d_.dim;
#if SPECD_AMX
        if (!tasks_.empty()) {
#pragma omp for schedule(dynamic)
            for (size_t task = 0; task < tasks_.size(); task++) {
                const auto attend_tile = [&](auto& attention) {
                    attention.attend(qkv_, width, l.keys, l.values, attended_, s_.spans, tasks_[task], d_.heads,
                                     d_.kv_heads, d_.dim, d_.block_size, l.scaling, l.window);
                };
                if (is_long(tasks_[task].span)) {
                    attend_tile(me.long_attention);
                } else {
                    attend_tile(me.attention);
                }
            }
            return;
        }
#endif
        const int64_t parts = s_.spans.count < 8 ? d_.kv_heads : 1, each = d_.kv_heads / parts;
        const auto run = d_.dim == 64    ? attend_span<bf16, 64>
                         : d_.dim == 128 ? attend_span<bf16, 128>
                                         : attend_span<bf16, 0>;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < s_.spans.count * parts; task++) {
            const int64_t from = task % parts * each;
            run(qkv_, width, l.keys, l.values, attended_, s_.spans, task / parts, from, from + each, d_.heads,
                d_.kv_heads, d_.dim, d_.block_size, l.scaling, l.window, me.heads);
        }
    }

    // The attention's share-out, the same for every layer: longest first, so that threads end together.
    void plan() {
#if SPECD_AMX
        const int64_t share = d_.heads / d_.kv_heads;
        if (!TileAttention::suits(d_.dim, d_.block_size, share)) return;
        const int64_t threads = omp_get_max_threads();
        for (int64_t span = 0; span < s_.spans.count; span++) {
            const int64_t queries = s_.spans.rows[span] * share;
            const int64_t size = is_long(span) ? LongAttention::kQueries : TileAttention::kQueries;
            int64_t together = std::clamp<int64_t>(TileAttention::kQueries / queries, 1, d_.kv_heads);
            if (s_.spans.count < threads) together = std::min(together, (d_.kv_heads + threads - 1) / threads);
            for (int64_t from = 0; from < d_.kv_heads; from += together) {
                const int64_t to = std::min(from + together, d_.kv_heads);
                for (int64_t first = 0; first < queries; first += size) {
                    tasks_.push_back({span, from, to, first, std::min(first + size, queries)});
                }
            }
        }
        const auto keys = [&](const QueryTile& t) {
            return s_.spans.end[t.span] - s_.spans.rows[t.span] + (t.last - 1) / share;
        };
        std::sort(tasks_.begin(), tasks_.end(), [&](const auto& a, const auto& b) { return keys(a) > keys(b); });
#endif
    }

#if SPECD_AMX
    // Whether a span has so many rows that its keys and values are worth preparing.
    bool is_long(int64_t span) const {
        return s_.spans.rows[span] > kLongRows && !s_.spans.tree(span) && d_.dim <= LongAttention::kMaxDim;
    }

    static constexpr int64_t kLongRows = 32;
    std::vector<QueryTile> tasks_;
#endif

    const Decoder& d_;
    Step s_;
    int64_t sizes_[4];
    bf16 *normed_, *qkv_, *attended_, *gated_;
    float* hidden_;  // [rows, H], the residual stream
};

#endif  // SPECD_SQUEEZED

}  // namespace specd
