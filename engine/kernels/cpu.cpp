// The small operations of a decoder layer, each in one pass. engine/kernels/reference.py is their specification.
// Compiled once by engine/kernels/native.py; plain C interface, no torch headers. Sums are in float32.

#include "attention.h"
#include "common.h"
#include "decoder.h"
#include "eagle.h"

namespace {

using namespace specd;

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
#pragma omp parallel for if (rows * heads * dim > kGrain)
    for (int64_t row = 0; row < rows; row++) {
        const float* c = cosine + row * dim;
        const float* s = sine + row * dim;
        for (int64_t head = 0; head < heads; head++) {
            rotate_head(x + row * stride + head * dim, c, s, dim);
        }
    }
}

template <typename T>
void paged_attention(const T* query, int64_t query_stride, const T* keys, const T* values, T* out, const Spans& spans,
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
    extern "C" void paged_attention_##suffix(const T* query, int64_t query_stride, const T* keys, const T* values,     \
                                             T* out, const Spans* spans, int64_t heads, int64_t kv_heads,              \
                                             int64_t dim, int64_t block_size, float scaling, int64_t window) {         \
        paged_attention(query, query_stride, keys, values, out, *spans, heads, kv_heads, dim, block_size, scaling,     \
                        window);                                                                                       \
    }

SPECD_EXPORT(float, f32)
SPECD_EXPORT(bf16, bf16)

// Whether this processor and kernel can run the functions below.
extern "C" int64_t squeezed_supported() {
#if SPECD_AMX
    return tiles_granted();
#else
    return SPECD_SQUEEZED;
#endif
}

// counts [256] += how often each exponent occurs among n weights
extern "C" void count_exponents(const bf16* weights, int64_t n, int64_t* counts) {
    for (int64_t i = 0; i < n; i++) counts[weights[i].bits >> 7 & 0xFF]++;
}

// Stores weights [out, in] as squeezed.h says, with the four-bit names given [256], into data that was zero.
// Weights without a name go to place [E, 2] and value [E], strip by strip, first [strips + 1] says where each begins.
extern "C" void squeeze(const bf16* weights, int64_t out, int64_t in, const uint8_t* names, uint8_t* data, int64_t* first,
                        int32_t* place, float* value) {
    const int64_t strips = (out + kStrip - 1) / kStrip;
    const auto is_exception = [&](bf16 weight) {
        return names[weight.bits >> 7 & 0xFF] == kNoName && (weight.bits & 0x7FFF);
    };
    first[0] = 0;
#pragma omp parallel for
    for (int64_t strip = 0; strip < strips; strip++) {
        const bf16* from = weights + strip * kStrip * in;
        first[strip + 1] = std::count_if(from, weights + std::min((strip + 1) * kStrip, out) * in, is_exception);
    }
    for (int64_t strip = 0; strip < strips; strip++) first[strip + 1] += first[strip];
#pragma omp parallel for
    for (int64_t strip = 0; strip < strips; strip++) {
        int64_t exception = first[strip];
        const int64_t end = std::min((strip + 1) * kStrip, out);
        for (int64_t block = 0; block < in / kBlock; block++) {
            for (int64_t output = strip * kStrip; output < end; output++) {
                const int64_t n = output - strip * kStrip;
                uint8_t* tile = data + ((strip * (in / kBlock) + block) * 2 + n / kTile) * kTileBytes;
                for (int64_t input = block * kBlock; input < (block + 1) * kBlock; input++) {
                    const bf16 weight = weights[output * in + input];
                    put(tile, input % kBlock / 2, n % kTile * 2 + input % 2, weight.bits,
                        names[weight.bits >> 7 & 0xFF]);
                    if (is_exception(weight)) {
                        place[2 * exception] = static_cast<int32_t>(n);
                        place[2 * exception + 1] = static_cast<int32_t>(input);
                        value[exception++] = widen(weight);
                    }
                }
            }
        }
    }
}

#if SPECD_SQUEEZED
// y [rows, out] = x [padded rows, in] times the weights, plus the bias
extern "C" void squeezed_linear(const SqueezedLinear* linear, const bf16* x, int64_t rows, bf16* y) {
#pragma omp parallel
    {
        Tiles tiles(rows);
        Scratch scratch;
        multiply(*linear, x, rows, scratch, [&](int64_t strip, int64_t first, int64_t count, const float* sums) {
            store_strip(*linear, strip, first, count, sums, y);
        });
    }
}

extern "C" void forward(const Decoder* decoder, const Step* step) { Forward(*decoder, *step).run(); }

extern "C" void eagle_step(const EagleHead* head, const EagleStep* step) { EagleForward(*head, *step).run(); }

extern "C" void eagle_drafts(const EagleHead* head, const EagleStep* first, const EagleDrafts* drafts) {
    EagleTrees(*head, *first, *drafts).draw();
}
#endif
