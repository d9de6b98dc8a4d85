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
    const int64_t* end;        // [B] position after the span's last row
    int64_t count;             // B
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

// Take `count` keys, from position `key` on, into the state of one key head. k, v: [kKeys, dim].
template <int64_t kDim>
void attend_keys(HeadState s, const float* k, const float* v, int64_t key, int64_t count, int64_t first,
                 int64_t queries, int64_t share, int64_t dim, int64_t window) {
    for (int64_t n = 0; n < queries; n++) {
        const int64_t position = first + n / share;
        const int64_t from = window > 0 ? std::max<int64_t>(0, position - window + 1 - key) : 0;
        const int64_t to = std::min(count, position + 1 - key);
        if (from >= to) continue;
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
}

// Key heads [from_head, to_head) of one span. All heads of a key lie together, so one task reads whole cache lines.
template <typename T, int64_t kDim>
void attend_span(const T* query, int64_t query_stride, const T* keys, const T* values, T* out, const Spans& spans,
                 int64_t span, int64_t from_head, int64_t to_head, int64_t heads, int64_t kv_heads,
                 int64_t runtime_dim, int64_t block_size, float scaling, int64_t window, std::vector<float>& scratch) {
    const int64_t dim = kDim ? kDim : runtime_dim;
    const int64_t share = heads / kv_heads, queries = spans.rows[span] * share;
    const int64_t end = spans.end[span], first = end - spans.rows[span];
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
    int64_t key = window > 0 ? std::max<int64_t>(0, first - window + 1) : 0;
    while (key < end) {
        const int64_t offset = key % block_size;
        const int64_t count = std::min({kKeys, block_size - offset, end - key});
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
            attend_keys<kDim>(state(head), k, v, key, count, first, queries, share, dim, window);
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
