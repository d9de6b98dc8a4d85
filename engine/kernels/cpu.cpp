// The small operations of a decoder layer, each in one pass. engine/kernels/reference.py is their specification.
// Compiled once by engine/kernels/native.py; plain C interface, no torch headers. Sums are in float32.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

namespace {

struct bf16 {
    uint16_t bits;
};

inline float widen(float x) { return x; }
inline float widen(bf16 x) {
    uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof wide);
    return wide;
}

inline void narrow(float x, float& out) { out = x; }
inline void narrow(float x, bf16& out) {  // round to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    out.bits = static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// e^x by argument reduction and a polynomial (Cephes), written so that compilers vectorise it; error about 1e-7.
inline float exponential(float x) {
    x = std::min(std::max(x, -87.0f), 88.0f);
    float n = std::nearbyint(x * 1.44269504088896341f);
    float r = std::fma(n, -0.693359375f, x);  // fma: the flags would let a plain sum of the two steps be folded
    r = std::fma(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t scale = (static_cast<int32_t>(n) + 127) << 23;
    float two_to_n;
    std::memcpy(&two_to_n, &scale, sizeof two_to_n);
    return p * two_to_n;
}

constexpr int64_t kGrain = 16384;  // elements below which waking other threads costs more than it brings

// hidden [T, H] += delta [T, H] (if given); out [T, H] = hidden / rms(hidden) * weight [H]
template <typename T>
void add_rms_norm(T* hidden, const T* delta, const float* weight, T* out, int64_t rows, int64_t size, float eps) {
#pragma omp parallel for if (rows * size > kGrain)
    for (int64_t row = 0; row < rows; row++) {
        T* x = hidden + row * size;
        const T* d = delta ? delta + row * size : nullptr;
        float squares = 0;
        if (d) {
            for (int64_t i = 0; i < size; i++) narrow(widen(x[i]) + widen(d[i]), x[i]);
        }
        for (int64_t i = 0; i < size; i++) squares += widen(x[i]) * widen(x[i]);
        float scale = 1.0f / std::sqrt(squares / size + eps);
        for (int64_t i = 0; i < size; i++) narrow(widen(x[i]) * scale * weight[i], out[row * size + i]);
    }
}

// gate_up [T, 2 I] -> out [T, I] = silu(gate) * up
template <typename T>
void silu_mul(const T* gate_up, T* out, int64_t rows, int64_t size) {
#pragma omp parallel for if (rows * size > kGrain)
    for (int64_t row = 0; row < rows; row++) {
        const T* gate = gate_up + row * 2 * size;
        const T* up = gate + size;
        for (int64_t i = 0; i < size; i++) {
            float g = widen(gate[i]);
            narrow(g / (1.0f + exponential(-g)) * widen(up[i]), out[row * size + i]);
        }
    }
}

// Rotary embedding in place on the first `heads` heads of each row [stride]; cos, sin [T, dim].
template <typename T>
void rotate(T* x, int64_t stride, const float* cosine, const float* sine, int64_t rows, int64_t heads, int64_t dim) {
    int64_t half = dim / 2;
#pragma omp parallel for if (rows * heads * dim > kGrain)
    for (int64_t row = 0; row < rows; row++) {
        const float* c = cosine + row * dim;
        const float* s = sine + row * dim;
        for (int64_t head = 0; head < heads; head++) {
            T* v = x + row * stride + head * dim;
            for (int64_t i = 0; i < half; i++) {
                float a = widen(v[i]), b = widen(v[i + half]);
                narrow(a * c[i] - b * s[i], v[i]);
                narrow(b * c[i + half] + a * s[i + half], v[i + half]);
            }
        }
    }
}

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

typedef float Lanes __attribute__((vector_size(64)));  // 16 floats; compilers split it where registers are narrower
typedef int32_t Order __attribute__((vector_size(64)));
constexpr int64_t kLanes = 16;

inline Lanes load(const float* at) {
    Lanes x;
    std::memcpy(&x, at, sizeof x);
    return x;
}

inline float sum_of(Lanes x) {
    x += __builtin_shuffle(x, Order{8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7});
    x += __builtin_shuffle(x, Order{4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11});
    x += __builtin_shuffle(x, Order{2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13});
    return x[0] + x[1];
}

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

template <typename T>
void paged_attention(const T* query, int64_t query_stride, const T* keys, const T* values, T* out, Spans spans,
                     int64_t heads, int64_t kv_heads, int64_t dim, int64_t block_size, float scaling, int64_t window) {
    int64_t work = 0;
    for (int64_t b = 0; b < spans.count; b++) work += spans.end[b] * spans.rows[b] * heads * dim;
    const int64_t parts = spans.count < 8 ? kv_heads : 1;  // few spans: share out their heads
    const int64_t heads_each = kv_heads / parts;
    const auto run = dim == 64 ? attend_span<T, 64> : dim == 128 ? attend_span<T, 128> : attend_span<T, 0>;
#pragma omp parallel if (work > 4 * kGrain)
    {
        std::vector<float> scratch;
#pragma omp for schedule(dynamic)
        for (int64_t task = 0; task < spans.count * parts; task++) {
            const int64_t from = task % parts * heads_each;
            run(query, query_stride, keys, values, out, spans, task / parts, from, from + heads_each, heads, kv_heads,
                dim, block_size, scaling, window, scratch);
        }
    }
}

// y [out] = w [out, in] x [in] + bias [out]. One row uses every weight once, so what counts is to read them as fast as
// memory gives them: rows of w in order, two at a time so that one's sums need not wait for the other's.
template <typename T>
void single_row(const T* x, const T* w, const T* bias, T* y, int64_t in, int64_t out) {
    std::vector<float> wide(in);
    for (int64_t i = 0; i < in; i++) wide[i] = widen(x[i]);
    const float* v = wide.data();
#pragma omp parallel for schedule(static) if (in * out > kGrain)
    for (int64_t pair = 0; pair < (out + 1) / 2; pair++) {
        const int64_t first = 2 * pair, second = std::min(first + 1, out - 1);
        const T *a = w + first * in, *b = w + second * in;
        float sum_a = 0, sum_b = 0;
        for (int64_t i = 0; i < in; i++) {
            sum_a += v[i] * widen(a[i]);
            sum_b += v[i] * widen(b[i]);
        }
        narrow(bias ? sum_a + widen(bias[first]) : sum_a, y[first]);
        narrow(bias ? sum_b + widen(bias[second]) : sum_b, y[second]);
    }
}

// Store rows [T, kv_heads * dim] (row stride given) into the slots of the pool.
template <typename T>
void write_kv(const T* key, const T* value, int64_t stride, T* keys, T* values, const int64_t* slots, int64_t rows,
              int64_t size) {
    for (int64_t row = 0; row < rows; row++) {
        std::memcpy(keys + slots[row] * size, key + row * stride, size * sizeof(T));
        std::memcpy(values + slots[row] * size, value + row * stride, size * sizeof(T));
    }
}

}  // namespace

#define SPECD_EXPORT(T, suffix)                                                                                        \
    extern "C" void add_rms_norm_##suffix(T* hidden, const T* delta, const float* weight, T* out, int64_t rows,        \
                                          int64_t size, float eps) {                                                   \
        add_rms_norm(hidden, delta, weight, out, rows, size, eps);                                                     \
    }                                                                                                                  \
    extern "C" void silu_mul_##suffix(const T* gate_up, T* out, int64_t rows, int64_t size) {                          \
        silu_mul(gate_up, out, rows, size);                                                                            \
    }                                                                                                                  \
    extern "C" void rotate_##suffix(T* x, int64_t stride, const float* cosine, const float* sine, int64_t rows,        \
                                    int64_t heads, int64_t dim) {                                                      \
        rotate(x, stride, cosine, sine, rows, heads, dim);                                                             \
    }                                                                                                                  \
    extern "C" void write_kv_##suffix(const T* key, const T* value, int64_t stride, T* keys, T* values,                \
                                      const int64_t* slots, int64_t rows, int64_t size) {                              \
        write_kv(key, value, stride, keys, values, slots, rows, size);                                                 \
    }                                                                                                                  \
    extern "C" void single_row_##suffix(const T* x, const T* w, const T* bias, T* y, int64_t in, int64_t out) {        \
        single_row(x, w, bias, y, in, out);                                                                            \
    }                                                                                                                  \
    extern "C" void paged_attention_##suffix(                                                                          \
        const T* query, int64_t query_stride, const T* keys, const T* values, T* out, const int64_t* tables,           \
        int64_t table_stride, const int64_t* first_row, const int64_t* rows, const int64_t* end, int64_t count,        \
        int64_t heads, int64_t kv_heads, int64_t dim, int64_t block_size, float scaling, int64_t window) {             \
        paged_attention(query, query_stride, keys, values, out,                                                        \
                        Spans{tables, table_stride, first_row, rows, end, count}, heads, kv_heads, dim, block_size,    \
                        scaling, window);                                                                              \
    }

SPECD_EXPORT(float, f32)
SPECD_EXPORT(bf16, bf16)
