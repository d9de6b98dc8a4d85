// Attention of long chains of rows, which is prefill: many queries share what is done with keys and values.
//
// Both products are AMX tiles of 2 by 2. Scores have keys as rows, texts have dims as rows, so that softmax works on
// sixteen queries of a vector at once, and its weights are the second product's right side as they fall:
//
//     scores [32 keys, 32 queries] = keys [32, dim]    x queries [dim, 32]
//     text   [32 dims, 32 queries] += values^T [32, keys] x weights [keys, 32]
//
// Values are transposed once for all queries of a task.
#pragma once

#include "attention_tiles.h"

#if SPECD_AMX

namespace specd {

class LongAttention {
   public:
    static constexpr int64_t kQueries = 128, kChunk = 128;  // queries of a task; keys between two looks at the maximum
    static constexpr int64_t kMaxDim = 128;

    // See TileAttention::attend. The span is a chain, the tile's queries are of one key head.
    void attend(const bf16* query, int64_t stride, const bf16* keys, const bf16* values, bf16* out, const Spans& spans,
                const QueryTile& tile, int64_t heads, int64_t kv_heads, int64_t dim, int64_t block_size, float scaling,
                int64_t window) {
        dim_ = dim;
        window_ = window;
        begin_ = spans.begin;
        scale_ = _mm512_set1_ps(scaling * 1.44269504088896341f);  // powers of two instead of e
        const int64_t share = heads / kv_heads, start = spans.end[tile.span] - spans.rows[tile.span];
        const int64_t tiles = (tile.last - tile.first + 15) / 16;
        for (int64_t t = 0; t < tiles + tiles % 2; t++) {
            place(t, query, stride, spans.first_row[tile.span], tile, share, start);
        }
        const int64_t lowest = start + tile.first / share, end = start + (tile.last - 1) / share + 1;
        int64_t key = window > 0 ? std::max<int64_t>(0, lowest - window + 1) / 32 * 32 : 0;
        for (; key < end; key += kChunk) {
            groups_ = 0;
            for (int64_t at = key; at < std::min(key + kChunk, end); at += 16) {
                const int64_t block = spans.tables[tile.span * spans.table_stride + at / block_size];
                slots_[groups_++] = block * block_size + at % block_size;
            }
            turn_values(values, kv_heads, tile.from);
            for (int64_t t = 0; t < tiles; t += 2) {
                const int64_t highest = std::max(state_[t].highest, state_[t + 1].highest);
                if (key > highest) continue;
                const int64_t used = std::min(groups_, (highest - key) / 16 + 1);
                score(keys, kv_heads, tile.from, t, used);
                weigh(state_[t], scores_[0], weights_[0], key, used);
                weigh(state_[t + 1], scores_[1], weights_[1], key, used);
                add_values(t, used);
            }
        }
        for (int64_t t = 0; t < tiles; t++) write(t, out, spans.first_row[tile.span], tile, heads, share);
    }

   private:
    static constexpr int64_t kTiles = kQueries / 16;
    // See attention_tiles.h. A power of two: here a score is scaled twice, rounded and not, and must come out the same, or
    // their difference would be an exponent of its own where a query sees none of a chunk.
    static constexpr float kUnseen = -0x1p100f;

    // Sixteen queries.
    struct State {
        __m512i positions;
        int64_t lowest, highest;
        __m512 top, sum, kept;
        alignas(64) uint32_t query[kMaxDim / 2 * 16];  // [pairs of dims][16]
        alignas(64) float text[kMaxDim * 16];          // [dim][16]
    };

    // Places beyond the task's last query repeat its last one; nobody reads what comes of them.
    void place(int64_t t, const bf16* query, int64_t stride, int64_t first_row, const QueryTile& tile, int64_t share,
               int64_t start) {
        State& s = state_[t];
        alignas(64) int32_t positions[16];
        for (int64_t c = 0; c < 16; c++) {
            const int64_t n = std::min(tile.first + t * 16 + c, tile.last - 1), row = n / share;
            const bf16* q = query + (first_row + row) * stride + (tile.from * share + n % share) * dim_;
            for (int64_t pair = 0; pair < dim_ / 2; pair++) std::memcpy(s.query + pair * 16 + c, q + 2 * pair, 4);
            positions[c] = static_cast<int32_t>(start + row);
        }
        s.positions = _mm512_load_si512(positions);
        s.lowest = positions[0];
        s.highest = positions[15];
        s.top = _mm512_set1_ps(kUnseen);
        s.sum = _mm512_setzero_ps();
        std::memset(s.text, 0, sizeof(float) * 16 * dim_);
    }

    // Scores of the chunk's first `used` groups of sixteen keys for query tiles t and t + 1.
    void score(const bf16* keys, int64_t kv_heads, int64_t head, int64_t t, int64_t used) {
        const int64_t bytes = kv_heads * dim_ * static_cast<int64_t>(sizeof(bf16));
        for (int64_t g = 0; g < used; g += 2) {
            const bf16* first = keys + (slots_[g] * kv_heads + head) * dim_;
            const bf16* second = keys + (slots_[std::min(g + 1, groups_ - 1)] * kv_heads + head) * dim_;
            _tile_zero(0);
            _tile_zero(1);
            _tile_zero(2);
            _tile_zero(3);
            for (int64_t d = 0; d < dim_; d += 32) {
                multiply(first + d, second + d, bytes, state_[t].query + d / 2 * 16, state_[t + 1].query + d / 2 * 16);
            }
            _tile_stored(0, scores_[0] + g * 256, 64);
            _tile_stored(1, scores_[1] + g * 256, 64);
            _tile_stored(2, scores_[0] + (g + 1) * 256, 64);
            _tile_stored(3, scores_[1] + (g + 1) * 256, 64);
        }
    }

    // Tiles 0 to 3 += two tiles of rows, whose stride is given, times two of columns. Loads in between the products hide
    // behind them.
    static void multiply(const void* upper, const void* lower, int64_t stride, const void* left, const void* right) {
        _tile_loadd(4, upper, stride);
        _tile_loadd(6, left, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, right, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, lower, stride);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }

    // Scores of `used` groups of keys from position `key` on become weights, in pairs of bf16, and zeros up to a full
    // tile; what was summed so far is to be scaled down by `kept`.
    void weigh(State& s, float* scores, uint32_t* weights, int64_t key, int64_t used) {
        const int64_t count = 16 * used;
        const bool behind = key < begin_ || (window_ > 0 && key <= s.highest - window_);
        if (behind || key + count > s.lowest + 1) hide(s, scores, key, count);
        __m512 most = _mm512_load_ps(scores), other = most;
        for (int64_t t = 0; t < count; t += 2) {
            most = _mm512_max_ps(most, _mm512_load_ps(scores + t * 16));
            other = _mm512_max_ps(other, _mm512_load_ps(scores + t * 16 + 16));
        }
        const __m512 best = _mm512_max_ps(s.top, _mm512_mul_ps(_mm512_max_ps(most, other), scale_));
        s.kept = power_of_two(_mm512_sub_ps(s.top, best));
        s.top = best;
        __m512 even = _mm512_setzero_ps(), odd = even;
        const __m512i zip = zipper();
        for (int64_t t = 0; t < count; t += 2) {
            const __m512 a = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + t * 16), scale_, best));
            const __m512 b = power_of_two(_mm512_fmsub_ps(_mm512_load_ps(scores + t * 16 + 16), scale_, best));
            even = _mm512_add_ps(even, a);
            odd = _mm512_add_ps(odd, b);
            const __m512i pair = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
            _mm512_store_si512(weights + t / 2 * 16, _mm512_permutexvar_epi16(zip, pair));
        }
        if (used % 2) std::memset(weights + count / 2 * 16, 0, 8 * 64);
        s.sum = _mm512_fmadd_ps(s.sum, s.kept, _mm512_add_ps(even, odd));
    }

    void hide(const State& s, float* scores, int64_t key, int64_t count) const {
        for (int64_t t = 0; t < count; t++) {
            const __m512i at = _mm512_set1_epi32(static_cast<int32_t>(key + t));
            __mmask16 seen = key + t < begin_ ? __mmask16{0} : _mm512_cmple_epi32_mask(at, s.positions);
            if (window_ > 0) {
                const __m512i behind = _mm512_sub_epi32(s.positions, _mm512_set1_epi32(static_cast<int32_t>(window_)));
                seen &= _mm512_cmpgt_epi32_mask(at, behind);
            }
            const __m512 score = _mm512_load_ps(scores + t * 16);
            _mm512_store_ps(scores + t * 16, _mm512_mask_blend_ps(seen, _mm512_set1_ps(kUnseen), score));
        }
    }

    // turned_ [dim / 16][32 keys' tiles][16 dims][16 key pairs]; zeros behind the chunk's last group.
    void turn_values(const bf16* values, int64_t kv_heads, int64_t head) {
        const __m512i zip = zipper();
        const int64_t stride = kv_heads * dim_;
        for (int64_t g = 0; g < groups_; g += 2) {
            for (int64_t d = 0; d < dim_; d += 16) {
                __m512i pairs[16];
                for (int64_t pair = 0; pair < 16; pair++) {
                    if (g + pair / 8 >= groups_) {
                        pairs[pair] = _mm512_setzero_si512();
                        continue;
                    }
                    const bf16* from = values + (slots_[g + pair / 8] + pair % 8 * 2) * stride + head * dim_ + d;
                    const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
                    const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + stride));
                    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
                    pairs[pair] = _mm512_permutexvar_epi16(zip, both);
                }
                transpose(pairs);
                uint32_t* to = turned_ + (d / 16 * (kChunk / 32) + g / 2) * 256;
                for (int64_t row = 0; row < 16; row++) _mm512_store_si512(to + row * 16, pairs[row]);
            }
        }
    }

    // text = text * kept + values^T x weights, for query tiles t and t + 1.
    void add_values(int64_t t, int64_t used) {
        State &a = state_[t], &b = state_[t + 1];
        for (int64_t d = 0; d < dim_; d++) {
            _mm512_store_ps(a.text + d * 16, _mm512_mul_ps(_mm512_load_ps(a.text + d * 16), a.kept));
            _mm512_store_ps(b.text + d * 16, _mm512_mul_ps(_mm512_load_ps(b.text + d * 16), b.kept));
        }
        for (int64_t d = 0; d < dim_; d += 32) {
            _tile_loadd(0, a.text + d * 16, 64);
            _tile_loadd(1, b.text + d * 16, 64);
            _tile_loadd(2, a.text + (d + 16) * 16, 64);
            _tile_loadd(3, b.text + (d + 16) * 16, 64);
            for (int64_t step = 0; step < (used + 1) / 2; step++) {
                const uint32_t* values = turned_ + (d / 16 * (kChunk / 32) + step) * 256;
                multiply(values, values + kChunk / 32 * 256, 64, weights_[0] + step * 256, weights_[1] + step * 256);
            }
            _tile_stored(0, a.text + d * 16, 64);
            _tile_stored(1, b.text + d * 16, 64);
            _tile_stored(2, a.text + (d + 16) * 16, 64);
            _tile_stored(3, b.text + (d + 16) * 16, 64);
        }
    }

    void write(int64_t t, bf16* out, int64_t first_row, const QueryTile& tile, int64_t heads, int64_t share) {
        State& s = state_[t];
        alignas(64) float scale[16];
        _mm512_store_ps(scale, _mm512_div_ps(_mm512_set1_ps(1.0f), s.sum));
        for (int64_t d = 0; d < dim_; d += 16) {
            __m512i rows[16];
            for (int64_t row = 0; row < 16; row++) rows[row] = _mm512_load_si512(s.text + (d + row) * 16);
            transpose(rows);
            for (int64_t c = 0; c < 16 && tile.first + t * 16 + c < tile.last; c++) {
                const int64_t n = tile.first + t * 16 + c;
                bf16* to = out + (first_row + n / share) * heads * dim_ + (tile.from * share + n % share) * dim_ + d;
                narrow16(_mm512_mul_ps(_mm512_castsi512_ps(rows[c]), _mm512_set1_ps(scale[c])), to);
            }
        }
    }

    // Sixteen rows of sixteen words.
    static void transpose(__m512i r[16]) {
        __m512i t[16];
        for (int i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
            t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
        }
        for (int i = 0; i < 16; i += 4) {
            r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
            r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
            r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
            r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        for (int c = 0; c < 4; c++) {
            t[c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0x88);
            t[4 + c] = _mm512_shuffle_i32x4(r[c], r[4 + c], 0xdd);
            t[8 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0x88);
            t[12 + c] = _mm512_shuffle_i32x4(r[8 + c], r[12 + c], 0xdd);
        }
        for (int c = 0; c < 4; c++) {
            r[c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0x88);
            r[4 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0x88);
            r[8 + c] = _mm512_shuffle_i32x4(t[c], t[8 + c], 0xdd);
            r[12 + c] = _mm512_shuffle_i32x4(t[4 + c], t[12 + c], 0xdd);
        }
    }

    int64_t dim_ = 0, window_ = 0, groups_ = 0, begin_ = 0;
    __m512 scale_;
    int64_t slots_[kChunk / 16];
    State state_[kTiles];
    alignas(64) float scores_[2][kChunk * 16];
    alignas(64) uint32_t weights_[2][kChunk / 2 * 16];
    alignas(64) uint32_t turned_[kMaxDim * kChunk / 2];
};

}  // namespace specd

#endif  // SPECD_AMX
