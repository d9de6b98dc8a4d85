// Attention of up to sixteen queries at a time in AMX tiles, over the block tables.
//
// A tile's columns are queries: of several heads and rows where these are few, else of one key head. Scores come with
// keys as rows, so that keys are read where they lie and softmax works on all queries of a vector at once:
//
//     scores [16 keys, 16 queries] = keys [16, dim] x queries [dim, 16]     a query's other heads are zero columns
//     text   [query, dim]         += weights [query, key pair] x values [key pair, dim]          by vdpbf16ps
//
// Online softmax: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
#pragma once

#include <array>

#include "attention.h"
#include "squeezed.h"

#if SPECD_AMX

namespace specd {

// Queries that attend in one go: those of key heads [from, to) and of rows * share numbers [first, last) of each.
struct QueryTile {
    int64_t span, from, to, first, last;
};

// A query that has seen no key yet gives all of them weight 1; the first that it sees, and it sees itself, takes
// this back, for then what was summed is scaled by 2^-1e30.
constexpr float kUnseen = -1e30f;

// [0 .. 15 | 16 .. 31] -> 0 16 1 17 ...
inline __m512i zipper() {
    alignas(64) static const auto order = [] {
        std::array<uint16_t, 32> indices{};
        for (int i = 0; i < 32; i++) indices[i] = static_cast<uint16_t>(i / 2 + i % 2 * 16);
        return indices;
    }();
    return _mm512_loadu_si512(order.data());
}

class TileAttention {
   public:
    static constexpr int64_t kQueries = 16, kChunk = 64;  // keys between two looks at the maximum

    static bool suits(int64_t dim, int64_t block_size, int64_t share) {
        return dim % 32 == 0 && dim <= kMaxDim && block_size % 16 == 0 && share <= kQueries;
    }

    // query: rows of heads of dim, stride given; keys, values: the pool's; out: [rows, heads, dim]
    void attend(const bf16* query, int64_t stride, const bf16* keys, const bf16* values, bf16* out, const Spans& spans,
                const QueryTile& tile, int64_t heads, int64_t kv_heads, int64_t dim, int64_t block_size, float scaling,
                int64_t window) {
        dim_ = dim;
        const int64_t share = heads / kv_heads, own = tile.last - tile.first;
        const int64_t start = spans.first_place(tile.span);
        place_queries(query, stride, spans, tile, share, start);
        std::memset(text_, 0, sizeof(float) * kQueries * dim);
        __m512 top = _mm512_set1_ps(kUnseen), sum = _mm512_setzero_ps();
        const int64_t end = spans.end[tile.span] - spans.rows[tile.span] + (tile.last - 1) / share + 1;
        // Positions between which all of the tile's are. A tree's rows all see its root, and are at most as deep as many.
        const int64_t lowest = tree_ ? start : start + tile.first / share, highest = end - 1;
        int64_t key = window > 0 ? std::max<int64_t>(0, lowest - window + 1) / kQueries * kQueries : 0;
        const int64_t* table = spans.tables + tile.span * spans.table_stride;
        keys_.begin(keys, kv_heads * dim, tile.from * dim, (tile.to - tile.from) * dim);
        values_.begin(values, kv_heads * dim, tile.from * dim, (tile.to - tile.from) * dim);
        int64_t groups = find_slots(table, block_size, key, end, slots_);
        keys_.expect(slots_, groups);
        values_.expect(slots_, groups);
        keys_.fetch(kAll);
        for (; key < end; key += kChunk) {
            values_.fetch(kAll);
            for (int64_t g = 0; g < groups; g++) score(keys, kv_heads, slots_[g], tile, scores_ + g * 16 * kQueries);
            const int64_t next = find_slots(table, block_size, key + kChunk, end, ahead_);
            keys_.expect(ahead_, next);
            values_.expect(ahead_, next);
            const bool inside = key >= begin_ && key + 16 * groups <= lowest + 1 && (window <= 0 || key > highest - window);
            weigh(key, 16 * groups, inside, scaling, window, top, sum);
            for (int64_t head = tile.from; head < tile.to; head++) {
                pair_values(values, kv_heads, head, groups, tile.to - tile.from);
                add_values(own * (head - tile.from), own, 8 * groups);
            }
            std::copy(ahead_, ahead_ + next, slots_);
            groups = next;
        }
        write(out, spans.first_row[tile.span], tile, heads, share, sum);
    }

   private:
    static constexpr int64_t kMaxDim = 256;
    static constexpr int64_t kAll = 1 << 20, kLines = 12;  // two keys of three heads of 64, as they are used up

    // Cache lines of keys or values that will be needed next. Blocks lie apart and hardware does not foresee the next
    // one; and a core can wait for few lines at a time, so they are asked for in between, a few with each computation.
    class Ahead {
       public:
        void begin(const bf16* store, int64_t stride, int64_t from, int64_t size) {
            store_ = reinterpret_cast<const char*>(store + from);
            stride_ = stride * static_cast<int64_t>(sizeof(bf16));
            size_ = size * static_cast<int64_t>(sizeof(bf16));
        }
        void expect(const int64_t* slots, int64_t groups) {
            slots_ = slots;
            groups_ = groups;
            group_ = key_ = line_ = 0;
        }
        void fetch(int64_t lines) {
            while (lines > 0 && group_ < groups_) {
                const char* at = store_ + (slots_[group_] + key_) * stride_;
                for (; line_ < size_ && lines > 0; line_ += 64, lines--) _mm_prefetch(at + line_, _MM_HINT_T0);
                if (line_ < size_) return;
                line_ = 0;
                if (++key_ == 16) {
                    key_ = 0;
                    group_++;
                }
            }
        }

       private:
        const char* store_ = nullptr;
        const int64_t* slots_ = nullptr;
        int64_t stride_ = 0, size_ = 0, groups_ = 0, group_ = 0, key_ = 0, line_ = 0;
    };

    // The chunk's groups of sixteen keys; returns how many there are.
    static int64_t find_slots(const int64_t* table, int64_t block_size, int64_t key, int64_t end, int64_t* slots) {
        int64_t groups = 0;
        for (int64_t at = key; at < std::min(key + kChunk, end); at += 16) {
            slots[groups++] = table[at / block_size] * block_size + at % block_size;
        }
        return groups;
    }

    // B tiles [head][dim / 32][16 pairs of dims][16 queries]; columns of another head are zero.
    void place_queries(const bf16* query, int64_t stride, const Spans& spans, const QueryTile& tile, int64_t share,
                       int64_t start) {
        const int64_t first_row = spans.first_row[tile.span];
        const int64_t* position = spans.position + first_row;
        tree_ = spans.tree(tile.span);
        own_ = position;
        start_ = start;
        begin_ = spans.begin;
        if (tree_) std::fill(columns_, columns_ + kMostRows, 0);
        const int64_t pairs = dim_ / 2, own = tile.last - tile.first;
        std::memset(queries_, 0, sizeof(uint32_t) * (tile.to - tile.from) * pairs * kQueries);
        alignas(64) int32_t positions[kQueries];
        std::fill(positions, positions + kQueries, static_cast<int32_t>(start + tile.first / share));
        for (int64_t head = tile.from; head < tile.to; head++) {
            for (int64_t n = tile.first; n < tile.last; n++) {
                const int64_t column = own * (head - tile.from) + n - tile.first;
                const bf16* q = query + (first_row + n / share) * stride + (head * share + n % share) * dim_;
                uint32_t* to = queries_ + (head - tile.from) * pairs * kQueries + column;
                for (int64_t pair = 0; pair < pairs; pair++) std::memcpy(to + pair * kQueries, q + 2 * pair, 4);
                positions[column] = static_cast<int32_t>(position[n / share]);
                for (uint64_t rows = tree_ ? tree_[n / share] : 0; rows; rows &= rows - 1) {
                    columns_[__builtin_ctzll(rows)] |= static_cast<__mmask16>(1 << column);
                }
            }
        }
        positions_ = _mm512_load_si512(positions);
    }

    void score(const bf16* keys, int64_t kv_heads, int64_t slot, const QueryTile& tile, float* scores) {
        const int64_t bytes = kv_heads * dim_ * static_cast<int64_t>(sizeof(bf16));
        _tile_zero(2);  // 2, 5 and 6 have sixteen rows, however few the step has
        for (int64_t head = tile.from; head < tile.to; head++) {
            const bf16* key = keys + (slot * kv_heads + head) * dim_;
            const uint32_t* q = queries_ + (head - tile.from) * dim_ / 2 * kQueries;
            for (int64_t d = 0; d < dim_; d += 64, q += 32 * kQueries) {
                _tile_loadd(5, key + d, bytes);
                _tile_loadd(6, q, 64);
                _tile_dpbf16ps(2, 5, 6);
                if (d + 32 == dim_) break;
                _tile_loadd(3, key + d + 32, bytes);  // another pair, so that loads need not wait for the product
                _tile_loadd(7, q + 16 * kQueries, 64);
                _tile_dpbf16ps(2, 3, 7);
            }
        }
        _tile_stored(2, scores, 64);
    }

    // Scores of keys [key, key + count) become weights, in pairs of bf16; what was summed so far is scaled down.
    void weigh(int64_t key, int64_t count, bool inside, float scaling, int64_t window, __m512& top, __m512& sum) {
        const __m512 scale = _mm512_set1_ps(scaling * 1.44269504088896341f);  // powers of two from here on
        __m512 best = top;
        for (int64_t t = 0; t < count; t++) {
            __m512 s = _mm512_mul_ps(_mm512_load_ps(scores_ + t * kQueries), scale);
            if (!inside) s = _mm512_mask_blend_ps(seen(key + t, window), _mm512_set1_ps(kUnseen), s);
            _mm512_store_ps(scores_ + t * kQueries, s);
            best = _mm512_max_ps(best, s);
        }
        const __m512 kept = power_of_two(_mm512_sub_ps(top, best));
        __m512 added = _mm512_setzero_ps();
        for (int64_t t = 0; t < count; t += 2) {
            const __m512 a = power_of_two(_mm512_sub_ps(_mm512_load_ps(scores_ + t * kQueries), best));
            const __m512 b = power_of_two(_mm512_sub_ps(_mm512_load_ps(scores_ + (t + 1) * kQueries), best));
            added = _mm512_add_ps(added, _mm512_add_ps(a, b));
            keys_.fetch(kLines);
            const __m512i pair = _mm512_permutexvar_epi16(zipper(), reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a)));
            _mm512_store_si512(weights_ + t / 2 * kQueries, pair);
        }
        top = best;
        sum = _mm512_add_ps(_mm512_mul_ps(sum, kept), added);
        _mm512_store_ps(kept_, kept);
    }

    __mmask16 seen(int64_t key, int64_t window) const {
        if (key < begin_) return 0;
        const int64_t row = key - start_;
        const bool own = tree_ && row >= 0;  // a tree's own key, or one of nobody's behind it
        if (own && (row >= kMostRows || columns_[row] == 0)) return 0;
        const __m512i place = _mm512_set1_epi32(static_cast<int32_t>(key));
        const __mmask16 mask = own ? columns_[row] : _mm512_cmple_epi32_mask(place, positions_);
        if (window <= 0) return mask;
        const __m512i at = own ? _mm512_set1_epi32(static_cast<int32_t>(own_[row])) : place;
        return mask & _mm512_cmpgt_epi32_mask(at, _mm512_sub_epi32(positions_, _mm512_set1_epi32(static_cast<int32_t>(window))));
    }

    // values of key pairs: paired_ [pairs][dim] of (value of the even key, of the odd key)
    void pair_values(const bf16* values, int64_t kv_heads, int64_t head, int64_t groups, int64_t heads) {
        const __m512i zip = zipper();
        for (int64_t g = 0; g < groups; g++) {
            const bf16* from = values + (slots_[g] * kv_heads + head) * dim_;
            uint32_t* to = paired_ + g * 8 * dim_;
            for (int64_t pair = 0; pair < 8; pair++, from += 2 * kv_heads * dim_, to += dim_) {
                values_.fetch(kLines / heads + 1);
                for (int64_t d = 0; d < dim_; d += 16) {
                    const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + d));
                    const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + kv_heads * dim_ + d));
                    const __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(even), odd, 1);
                    _mm512_store_si512(to + d, _mm512_permutexvar_epi16(zip, both));
                }
            }
        }
    }

    // Columns [column, column + count): text = text * kept + weights x values
    void add_values(int64_t column, int64_t count, int64_t pairs) {
        for (int64_t d = 0; d < dim_; d += 32) {
            int64_t c = column;
            for (; c + 2 <= column + count; c += 2) add_columns<2>(c, d, pairs);
            if (c < column + count) add_columns<1>(c, d, pairs);
        }
    }

    template <int kColumns>
    void add_columns(int64_t column, int64_t d, int64_t pairs) {
        __m512 acc[kColumns][2];
        for (int c = 0; c < kColumns; c++) {
            const __m512 kept = _mm512_set1_ps(kept_[column + c]);
            for (int half = 0; half < 2; half++) {
                acc[c][half] = _mm512_mul_ps(_mm512_load_ps(text_ + (column + c) * dim_ + d + 16 * half), kept);
            }
        }
        const uint32_t* value = paired_ + d;
        const uint32_t* weight = weights_ + column;
        for (int64_t pair = 0; pair < pairs; pair++, value += dim_, weight += kQueries) {
            const __m512bh low = reinterpret_cast<__m512bh>(_mm512_load_si512(value));
            const __m512bh high = reinterpret_cast<__m512bh>(_mm512_load_si512(value + 16));
            for (int c = 0; c < kColumns; c++) {
                const __m512bh w = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int32_t>(weight[c])));
                acc[c][0] = _mm512_dpbf16_ps(acc[c][0], low, w);
                acc[c][1] = _mm512_dpbf16_ps(acc[c][1], high, w);
            }
        }
        for (int c = 0; c < kColumns; c++)
            for (int half = 0; half < 2; half++) _mm512_store_ps(text_ + (column + c) * dim_ + d + 16 * half, acc[c][half]);
    }

    void write(bf16* out, int64_t first_row, const QueryTile& tile, int64_t heads, int64_t share, __m512 sum) {
        alignas(64) float sums[kQueries];
        _mm512_store_ps(sums, sum);
        const int64_t own = tile.last - tile.first;
        for (int64_t head = tile.from; head < tile.to; head++) {
            for (int64_t n = tile.first; n < tile.last; n++) {
                const int64_t column = own * (head - tile.from) + n - tile.first;
                const __m512 scale = _mm512_set1_ps(1.0f / sums[column]);
                bf16* to = out + (first_row + n / share) * heads * dim_ + (head * share + n % share) * dim_;
                for (int64_t d = 0; d < dim_; d += 16) {
                    narrow16(_mm512_mul_ps(_mm512_load_ps(text_ + column * dim_ + d), scale), to + d);
                }
            }
        }
    }

    static constexpr int64_t kMostRows = 64;  // of a tree

    int64_t dim_ = 0;
    __m512i positions_;
    const uint64_t* tree_ = nullptr;  // see Spans::tree
    const int64_t* own_ = nullptr;    // positions of the span's rows
    int64_t start_ = 0, begin_ = 0;
    __mmask16 columns_[kMostRows];  // by row of a tree: the queries that see it
    int64_t slots_[kChunk / 16], ahead_[kChunk / 16];  // of this chunk of keys, and of the next
    Ahead keys_, values_;
    alignas(64) uint32_t queries_[kQueries * kMaxDim / 2 * kQueries];  // at most 16 heads of one query each
    alignas(64) float scores_[kChunk * kQueries];
    alignas(64) uint32_t weights_[kChunk / 2 * kQueries];
    alignas(64) uint32_t paired_[kChunk / 2 * kMaxDim];
    alignas(64) float text_[kQueries * kMaxDim];
    alignas(64) float kept_[kQueries];
};

}  // namespace specd

#endif  // SPECD_AMX
