// What the kernels share: bf16, an exponential that vectorises, vectors of sixteen floats. Sums are in float32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace specd {

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

// Rotary embedding of one head, in place. cosine, sine: [dim]
template <typename T>
void rotate_head(T* x, const float* cosine, const float* sine, int64_t dim) {
    const int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const float a = widen(x[i]), b = widen(x[i + half]);
        narrow(a * cosine[i] - b * sine[i], x[i]);
        narrow(b * cosine[i + half] + a * sine[i + half], x[i + half]);
    }
}

}  // namespace specd
