// Attention of a step's rows over the block tables, no keys copied: online softmax, sixteen keys at a time.
#pragma once

#include <vector>

#include "common.h"

namespace specd {

struct Spans {
    const int64_t* tables;  // [B, table_stride] block numbers
    int64_t table_stride;
    const int64_t* first_row;  // [B] packed row at which the span begins
    const int64_t* rows;       // [B]
    const int64_t* end;        // [B] place in the table after the span's last row
    const int64_t* position;   // [T] of each packed row in its sequence; its place too, but for rows of trees
    const uint64_t* sight;     // [T] bit r: the row sees row r of its tree; 0 for chains. Null: there is no tree
    int64_t count;             // B
    int64_t begin;             // the first place of every table that holds a key
    const int64_t* grown;      // [B] rows of a span's tree that were computed before: sights count from the first of
                               // them. Null: none. Only where no layer has a window

    // Place of the first row of a span's tree; of a chain's own first row.
    int64_t first_place(int64_t span) const { return end[span] - rows[span] - (grown ? grown[span] : 0); }

    // What the span's rows see of its own; null for a chain, whose rows see all before them.
    const uint64_t* tree(int64_t span) const {
        return sight && sight[first_row[span]] ? sight + first_row[span] : nullptr;
    }
};

constexpr int64_t kKeys = 16;  // keys that are widened at a time and shared by all rows of a key head

// What one task keeps for one key head: online softmax over the keys seen so far, for every row and query head.
struct HeadState {
    float* q;      // [queries, dim], scaled
    float* acc;    // [queries, dim]
    float* score;  // [queries, kKeys]
    float* top;    // [queries]
    float* sum;    // [queries]
    static int64_t floats(int64_t queries, int64_t dim) { return queries * (2 * dim + kKeys + 2); }
    HeadState(float* at, int64_t queries, int64_t dim)
        : q(at), acc(q + queries * dim), score(acc + queries * dim), top(score + queries * kKeys), sum(top + queries) {}
};

// score[t] = q . k[t] for t in [from, to). The known widths keep q in registers.
template <int64_t kDim>
void dot_keys(const float* q, const float* k, float* score, int64_t from, int64_t to, int64_t dim) {
    if constexpr (kDim > 0) {
        Lanes own[kDim / kLanes];
        for (int64_t c = 0; c < kDim / kLanes; c++) own[c] = load(q + c * kLanes);
        for (int64_t t = from; t < to; t++) {
            Lanes product = own[0] * load(k + t * kDim);
            for (int64_t c = 1; c < kDim / kLanes; c++) product += own[c] * load(k + t * kDim + c * kLanes);
            score[t] = sum_of(product);
        }
    } else {
        for (int64_t t = from; t < to; t++) {
            float dot = 0;
            for (int64_t i = 0; i < dim; i++) dot += q[i] * k[t * dim + i];
            score[t] = dot;
        }
    }
}

// acc = acc * kept + sum over t of weight[t] v[t]
template <int64_t kDim>
void add_values(float* acc, float kept, const float* weight, const float* v, int64_t from, int64_t to, int64_t dim) {
    if constexpr (kDim > 0) {
        Lanes own[kDim / kLanes];
        for (int64_t c = 0; c < kDim / kLanes; c++) own[c] = load(acc + c * kLanes) * kept;
        for (int64_t t = from; t < to; t++) {
            for (int64_t c = 0; c < kDim / kLanes; c++) own[c] += weight[t] * load(v + t * kDim + c * kLanes);
        }
        std::memcpy(acc, own, sizeof own);
    } else {
        for (int64_t i = 0; i < dim; i++) acc[i] *= kept;
        for (int64_t t = from; t < to; t++) {
            for (int64_t i = 0; i < dim; i++) acc[i] += weight[t] * v[t * dim + i];
        }
    }
}

// Take keys [from, to) into one row of a key head. k, v: [kKeys, dim].
template <int64_t kDim>
inline void attend_run(HeadState s, int64_t n, const float* k, const float* v, int64_t from, int64_t to, int64_t dim) {
    float* score = s.score + n * kKeys;
    dot_keys<kDim>(s.q + n * dim, k, score, from, to, dim);
    float best = s.top[n];
    for (int64_t t = from; t < to; t++) best = std::max(best, score[t]);
    const float kept = exponential(s.top[n] - best);  // tiny for the first keys, when acc and sum are 0
    float added = 0;
    for (int64_t t = from; t < to; t++) {
        score[t] = exponential(score[t] - best);
        added += score[t];
    }
    s.top[n] = best;
    s.sum[n] = s.sum[n] * kept + added;
    add_values<kDim>(s.acc + n * dim, kept, score, v, from, to, dim);
}

// Take `count` keys, from position `key` on, into the state of one key head. position: of the span's rows.
template <int64_t kDim>
void attend_keys(HeadState s, const float* k, const float* v, int64_t key, int64_t count, const int64_t* position,
                 int64_t queries, int64_t share, int64_t dim, int64_t window) {
    for (int64_t n = 0; n < queries; n++) {
        const int64_t own = position[n / share];
        const int64_t from = window > 0 ? std::max<int64_t>(0, own - window + 1 - key) : 0;
        const int64_t to = std::min(count, own + 1 - key);
        if (from < to) attend_run<kDim>(s, n, k, v, from, to, dim);
    }
}

// The same for `count` keys that are a tree's own rows, from `row` on: each row sees its ancestors and itself.
template <int64_t kDim>
void attend_tree(HeadState s, const float* k, const float* v, int64_t row, int64_t count, const int64_t* position,
                 const uint64_t* sight, int64_t queries, int64_t share, int64_t dim, int64_t window) {
    for (int64_t n = 0; n < queries; n++) {
        const auto sees = [&](int64_t t) {
            const bool near = window <= 0 || position[n / share] - position[row + t] < window;
            return near && (sight[n / share] >> (row + t) & 1);
        };
        for (int64_t t = 0; t < count; t++) {
            const int64_t from = t;
            while (t < count && sees(t)) t++;
            if (from < t) attend_run<kDim>(s, n, k, v, from, t, dim);
        }
    }
}

// Key heads [from_head, to_head) of one span. All heads of a key lie together, so one task reads whole cache lines.
template <typename T, int64_t kDim>
void attend_span(const T* query, int64_t query_stride, const T* keys, const T* values, T* out, const Spans& spans,
                 int64_t span, int64_t from_head, int64_t to_head, int64_t heads, int64_t kv_heads,
                 int64_t runtime_dim, int64_t block_size, float scaling, int64_t window, std::vector<float>& scratch) {
    const int64_t dim = kDim ? kDim : runtime_dim;
    const int64_t share = heads / kv_heads, queries = spans.rows[span] * share;
    const int64_t end = spans.end[span], first = spans.first_place(span);
    const int64_t per_head = HeadState::floats(queries, dim);
    scratch.resize((to_head - from_head) * per_head + 2 * kKeys * dim);
    float* k = scratch.data() + (to_head - from_head) * per_head;
    float* v = k + kKeys * dim;
    const auto state = [&](int64_t head) { return HeadState(scratch.data() + (head - from_head) * per_head, queries, dim); };
    for (int64_t head = from_head; head < to_head; head++) {
        HeadState s = state(head);
        for (int64_t n = 0; n < queries; n++) {
            const T* source = query + (spans.first_row[span] + n / share) * query_stride + (head * share + n % share) * dim;
            for (int64_t i = 0; i < dim; i++) s.q[n * dim + i] = widen(source[i]) * scaling;
        }
        std::fill(s.acc, s.acc + queries * dim, 0.0f);
        std::fill(s.top, s.top + queries, -INFINITY);
        std::fill(s.sum, s.sum + queries, 0.0f);
    }
    const int64_t* table = spans.tables + span * spans.table_stride;
    const int64_t* position = spans.position + spans.first_row[span];
    const uint64_t* tree = spans.tree(span);
    int64_t key = window > 0 ? std::max(spans.begin, first - window + 1) : spans.begin;
    while (key < end) {
        const int64_t offset = key % block_size;
        const int64_t last = tree && key < first ? first : end;  // a tree's own keys are taken apart from those before
        const int64_t count = std::min({kKeys, block_size - offset, last - key});
        const int64_t slot = table[key / block_size] * block_size + offset;
        const int64_t ahead = key + count + kKeys;
        if (ahead < end && to_head - from_head == kv_heads) {  // blocks lie apart: hardware does not foresee the next
            const int64_t next = (table[ahead / block_size] * block_size + ahead % block_size) * kv_heads * dim;
            const char* kp = reinterpret_cast<const char*>(keys + next);
            const char* vp = reinterpret_cast<const char*>(values + next);
            const int64_t bytes = kKeys * kv_heads * dim * sizeof(T);
            for (int64_t i = 0; i < bytes; i += 64) {
                __builtin_prefetch(kp + i);
                __builtin_prefetch(vp + i);
            }
        }
        for (int64_t head = from_head; head < to_head; head++) {
            for (int64_t t = 0; t < count; t++) {
                const T* key_row = keys + ((slot + t) * kv_heads + head) * dim;
                const T* value_row = values + ((slot + t) * kv_heads + head) * dim;
                for (int64_t i = 0; i < dim; i++) k[t * dim + i] = widen(key_row[i]);
                for (int64_t i = 0; i < dim; i++) v[t * dim + i] = widen(value_row[i]);
            }
            if (tree && key >= first) {
                attend_tree<kDim>(state(head), k, v, key - first, count, position, tree, queries, share, dim, window);
            } else {
                attend_keys<kDim>(state(head), k, v, key, count, position, queries, share, dim, window);
            }
        }
        key += count;
    }
    for (int64_t head = from_head; head < to_head; head++) {
        HeadState s = state(head);
        for (int64_t n = 0; n < queries; n++) {
            T* target = out + (spans.first_row[span] + n / share) * heads * dim + (head * share + n % share) * dim;
            for (int64_t i = 0; i < dim; i++) narrow(s.acc[n * dim + i] / s.sum[n], target[i]);
        }
    }
}

}  // namespace specd
