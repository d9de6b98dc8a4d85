// Linear layers over bf16 weights that are stored in twelve bits each, without loss.
//
// A matrix uses few of the 256 exponents that bf16 has: fifteen cover all but one weight in thousands. So a weight is
// kept as a byte of sign and mantissa and four bits that name its exponent; what no name fits (code 15) counts as zero
// here and comes again, whole, in a list of exceptions. A quarter fewer bytes is a quarter less time where memory sets
// the pace, which is every step with few rows. Idea of storing exponents by their entropy: Zhang et al., "70% size,
// 100% accuracy: lossless LLM compression via DFloat11", 2025; fixed widths instead of Huffman codes decode in vectors.
//
// Layout: strips of 32 outputs, each a run of blocks of 32 inputs, each two tiles of 16 outputs. A tile's 16 rows are
// pairs of inputs, as AMX and vdpbf16ps take them:
//
//     row r of a tile   w[n0][2r] w[n0][2r+1]  w[n1][2r] w[n1][2r+1]  ...  w[n15][2r] w[n15][2r+1]
//
// Four rows a, b, c, d, of 32 weights each, are stored as three vectors of 32 words, so that a mask, a rotation and a
// look-up in registers put a weight together:
//
//     bits        15       14 .. 8      7        6 .. 0
//     first       sign a   mantissa b   sign b   mantissa a
//     second      sign c   mantissa d   sign d   mantissa c
//     third       name d   name c       name b   name a       four bits each
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common.h"

#if defined(__AVX512BF16__) && defined(__AVX512VBMI2__) && defined(__AVX512BW__)
#define SPECD_SQUEEZED 1
#else
#define SPECD_SQUEEZED 0
#endif

#if SPECD_SQUEEZED && defined(__AMX_BF16__) && defined(__AMX_TILE__)
#define SPECD_AMX 1
#else
#define SPECD_AMX 0
#endif

namespace specd {

constexpr int64_t kTile = 16;            // outputs of a tile, and pairs of inputs
constexpr int64_t kStrip = 2 * kTile;    // outputs of a strip
constexpr int64_t kBlock = 2 * kTile;    // inputs of a tile
constexpr int64_t kTileWeights = kTile * kBlock;
constexpr int64_t kTileBytes = kTileWeights + kTileWeights / 2;
constexpr int64_t kAhead = 4096;         // bytes read ahead of use: what a core has under way covers the way to memory

extern "C" struct SqueezedLinear {
    const uint8_t* data;         // [strips, in / 32, 2, 768]
    const uint16_t* exponents;   // [32] the sixteen names' exponents in place, twice; code 15 is zero
    const int64_t* first;        // [strips + 1] where each strip's exceptions begin
    const int32_t* place;        // [exceptions, 2] output within the strip, input; by strip, then by block of inputs
    const float* value;          // [exceptions]
    const float* bias;           // [32 strips] or null
    int64_t in, out;             // inputs, a multiple of 32; outputs, a multiple of 16
    int64_t strips;
};

constexpr uint8_t kNoName = 15;

// Puts one weight into a tile that was zero, at word `word` of row `row`.
inline void put(uint8_t* tile, int64_t row, int64_t word, uint16_t bits, uint8_t name) {
    const int64_t in_pair = row % 2;  // a or c: low mantissa, high sign; b or d: the other way round
    uint16_t* words = reinterpret_cast<uint16_t*>(tile + row / 4 * 192);
    uint16_t& shared = words[row % 4 / 2 * 32 + word];
    const uint16_t sign = bits >> 15, mantissa = bits & 0x7F;
    shared |= in_pair ? sign << 7 | mantissa << 8 : sign << 15 | mantissa;
    words[64 + word] |= static_cast<uint16_t>(name << row % 4 * 4);
}

#if SPECD_SQUEEZED

// Four rows of a tile, whole weights, from 192 bytes.
inline void unsqueeze(const uint8_t* from, __m512i names, __m512i out[4]) {
    const __m512i keep = _mm512_set1_epi16(static_cast<int16_t>(0x807f));  // sign and mantissa
    const __m512i ab = _mm512_loadu_si512(from), cd = _mm512_loadu_si512(from + 64);
    const __m512i codes = _mm512_loadu_si512(from + 128);
    // (sign and mantissa) | exponent; the table is there twice, so the fifth bit of an index does not matter
    const auto whole = [&](__m512i bits, __m512i code) {
        return _mm512_ternarylogic_epi32(bits, keep, _mm512_permutexvar_epi16(code, names), 0xEA);
    };
    out[0] = whole(ab, codes);
    out[1] = whole(_mm512_shldi_epi16(ab, ab, 8), _mm512_srli_epi16(codes, 4));
    out[2] = whole(cd, _mm512_srli_epi16(codes, 8));
    out[3] = whole(_mm512_shldi_epi16(cd, cd, 8), _mm512_srli_epi16(codes, 12));
}

// Sixteen floats to bf16, to nearest, ties to even.
inline void narrow16(__m512 x, bf16* out) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

inline __m512 widen16(const bf16* x) {
    return _mm512_castsi512_ps(
        _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))), 16));
}

// 2^x by a polynomial on [-1/2, 1/2]; relative error about 3e-6, where bf16 rounds to 4e-3.
inline __m512 power_of_two(__m512 x) {
    const __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const __m512 r = _mm512_sub_ps(x, n);
    __m512 p = _mm512_set1_ps(1.3333558e-3f);
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291e-3f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314720e-1f));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_scalef_ps(p, n);
}

inline __m512bh as_pairs(__m512i x) { return reinterpret_cast<__m512bh>(x); }

inline __m512i pair_of(const bf16* x, int64_t k) {
    int32_t both;
    std::memcpy(&both, x + k, sizeof both);
    return _mm512_set1_epi32(both);
}

// sums [kRows][32] = x [kRows, in] times a strip, exceptions aside. For few rows: each weight is decoded into
// registers and used there.
template <int kRows>
void few_rows(const SqueezedLinear& linear, int64_t strip, const bf16* x, float* sums) {
    const __m512i names = _mm512_loadu_si512(linear.exponents);
    const int64_t blocks = linear.in / kBlock;
    const uint8_t* tile = linear.data + strip * blocks * 2 * kTileBytes;
    __m512 acc[kRows][2][2];
    for (auto& row : acc)
        for (auto& half : row) half[0] = half[1] = _mm512_setzero_ps();
    for (int64_t block = 0; block < blocks; block++) {
        for (int half = 0; half < 2; half++, tile += kTileBytes) {
            for (int64_t line = 0; line < kTileBytes; line += 64) _mm_prefetch(tile + kAhead + line, _MM_HINT_T0);
            for (int64_t four = 0; four < kTile / 4; four++) {
                __m512i weights[4];
                unsqueeze(tile + four * 192, names, weights);
                for (int row = 0; row < kRows; row++) {
                    const bf16* at = x + row * linear.in + block * kBlock + four * 8;
                    for (int r = 0; r < 4; r++) {
                        __m512& sum = acc[row][half][r % 2];
                        sum = _mm512_dpbf16_ps(sum, as_pairs(weights[r]), as_pairs(pair_of(at, 2 * r)));
                    }
                }
            }
        }
    }
    for (int row = 0; row < kRows; row++)
        for (int half = 0; half < 2; half++)
            _mm512_storeu_ps(sums + row * kStrip + half * kTile, _mm512_add_ps(acc[row][half][0], acc[row][half][1]));
}

#if SPECD_AMX

// Linux hands out the tiles to a process that asks; once is enough, and asking again does no harm.
inline bool tiles_granted() {
    constexpr long request = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request, tile_data) == 0;
}

// This thread's AMX tiles for as long as it lives: eight of 16 rows by 64 bytes. Puts back what it found, since oneDNN
// remembers what it configured last and does not look.
class Tiles {
   public:
    // A product of few rows takes as many cycles as it has rows, so no more are configured than there are.
    explicit Tiles(int64_t rows) {
        const uint8_t height = static_cast<uint8_t>(std::min(rows, kTile));
        _tile_storeconfig(before_);
        alignas(64) uint8_t ours[64] = {1};  // palette 1
        for (int tile = 0; tile < 8; tile++) {
            ours[16 + 2 * tile] = 64;  // bytes of a row
            ours[48 + tile] = tile == 0 || tile == 1 || tile == 4 ? height : 16;  // rows: see StripSums
        }
        _tile_loadconfig(ours);
    }
    ~Tiles() {
        if (before_[0]) {
            _tile_loadconfig(before_);
        } else {
            _tile_release();
        }
    }
    Tiles(const Tiles&) = delete;
    Tiles& operator=(const Tiles&) = delete;

   private:
    alignas(64) uint8_t before_[64] = {};
};

// One tile in whole: decoded [512].
inline void unsqueeze_tile(const uint8_t* tile, __m512i names, bf16* decoded) {
    for (int64_t line = 0; line < kTileBytes; line += 64) _mm_prefetch(tile + kAhead + line, _MM_HINT_T0);
    for (int64_t four = 0; four < kTile / 4; four++) {
        __m512i weights[4];
        unsqueeze(tile + four * 192, names, weights);
        for (int r = 0; r < 4; r++) _mm512_store_si512(decoded + four * 128 + r * 32, weights[r]);
    }
}

// A strip's weights in whole, block after block, its exceptions put in their places.
class StripReader {
   public:
    StripReader(const SqueezedLinear& linear, int64_t strip)
        : linear_(linear),
          names_(_mm512_loadu_si512(linear.exponents)),
          tile_(linear.data + strip * (linear.in / kBlock) * 2 * kTileBytes),
          exception_(linear.first[strip]),
          last_(linear.first[strip + 1]) {}

    void next(bf16* decoded) {  // [2, 512]
        unsqueeze_tile(tile_, names_, decoded);
        unsqueeze_tile(tile_ + kTileBytes, names_, decoded + kTileWeights);
        tile_ += 2 * kTileBytes;
        for (; exception_ < last_ && linear_.place[2 * exception_ + 1] / kBlock == block_; exception_++) {
            const int64_t out = linear_.place[2 * exception_], in = linear_.place[2 * exception_ + 1] % kBlock;
            bf16& weight = decoded[out / kTile * kTileWeights + in / 2 * 32 + out % kTile * 2 + in % 2];
            narrow(linear_.value[exception_], weight);
        }
        block_++;
    }

   private:
    const SqueezedLinear& linear_;
    __m512i names_;
    const uint8_t* tile_;
    int64_t exception_, last_, block_ = 0;
};

// Sums of up to 16 rows of x, or of 32 with kBoth, over one strip. Tiles 0 and 1 are the first rows' sums and 4 their
// input; 2, 3 and 5 the same of the others; 6 and 7 hold weights.
template <bool kBoth>
struct StripSums {
    StripSums() {
        _tile_zero(0);
        _tile_zero(1);
        if constexpr (kBoth) {
            _tile_zero(2);
            _tile_zero(3);
        }
    }
    // Adds the products with 32 inputs; decoded [2, 512].
    void add(const bf16* decoded, const bf16* x, int64_t stride) {
        const int64_t bytes = stride * static_cast<int64_t>(sizeof(bf16));
        // Loads in between the products hide behind them; before them they would not. Inputs are read past the nearest
        // cache, which the weights of a strip fill.
        _tile_stream_loadd(4, x, bytes);
        _tile_loadd(6, decoded, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, decoded + kTileWeights, 64);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (kBoth) {
            _tile_stream_loadd(5, x + kTile * stride, bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    void store(float* sums) {  // [16 or 32, 32]
        constexpr int64_t bytes = kStrip * sizeof(float);
        _tile_stored(0, sums, bytes);
        _tile_stored(1, sums + kTile, bytes);
        if constexpr (kBoth) {
            _tile_stored(2, sums + kTile * kStrip, bytes);
            _tile_stored(3, sums + kTile * kStrip + kTile, bytes);
        }
    }
};

// Up to 32 rows: weights are decoded a block ahead of their use, so that one hides behind the other.
template <bool kBoth>
void stream_strip(const SqueezedLinear& linear, int64_t strip, const bf16* x, float* sums, bf16* decoded) {
    const auto place = [&](int64_t block) { return decoded + block % 4 * 2 * kTileWeights; };
    StripReader reader(linear, strip);
    StripSums<kBoth> strip_sums;
    reader.next(place(0));
    const int64_t blocks = linear.in / kBlock;
    for (int64_t block = 0; block < blocks; block++) {
        if (block + 1 < blocks) reader.next(place(block + 1));
        strip_sums.add(place(block), x + block * kBlock, linear.in);
    }
    strip_sums.store(sums);
}

// More rows: the strip is decoded once and used for 32 of them at a time.
template <bool kBoth>
void reuse_strip(const bf16* decoded, const SqueezedLinear& linear, const bf16* x, float* sums) {
    StripSums<kBoth> strip_sums;
    for (int64_t block = 0; block < linear.in / kBlock; block++) {
        strip_sums.add(decoded + block * 2 * kTileWeights, x + block * kBlock, linear.in);
    }
    strip_sums.store(sums);
}

// give(first, count) is called as the sums of rows [first, first + count) lie in `sums`.
template <typename Give>
void strip_by_tiles(const SqueezedLinear& linear, int64_t strip, const bf16* x, int64_t rows, float* sums, bf16* decoded,
                    const Give& give) {
    if (rows <= 2 * kTile) {
        rows <= kTile ? stream_strip<false>(linear, strip, x, sums, decoded)
                      : stream_strip<true>(linear, strip, x, sums, decoded);
        give(0, rows);
        return;
    }
    StripReader reader(linear, strip);
    for (int64_t block = 0; block < linear.in / kBlock; block++) reader.next(decoded + block * 2 * kTileWeights);
    for (int64_t row = 0; row < rows; row += 2 * kTile) {
        const int64_t count = std::min(2 * kTile, rows - row);
        count <= kTile ? reuse_strip<false>(decoded, linear, x + row * linear.in, sums)
                       : reuse_strip<true>(decoded, linear, x + row * linear.in, sums);
        give(row, count);
    }
}

#else

struct Tiles {
    explicit Tiles(int64_t) {}
};

#endif  // SPECD_AMX

// Any number of rows without tiles: four at a time. give: see strip_by_tiles.
template <typename Give>
void strip_by_vectors(const SqueezedLinear& linear, int64_t strip, const bf16* x, int64_t rows, float* sums,
                      const Give& give) {
    for (int64_t row = 0; row < rows; row += 4) {
        const int64_t count = std::min<int64_t>(4, rows - row);
        const bf16* from = x + row * linear.in;
        if (count == 4) few_rows<4>(linear, strip, from, sums);
        if (count == 3) few_rows<3>(linear, strip, from, sums);
        if (count == 2) few_rows<2>(linear, strip, from, sums);
        if (count == 1) few_rows<1>(linear, strip, from, sums);
        for (int64_t e = linear.first[strip]; e < linear.first[strip + 1]; e++) {
            const int64_t out = linear.place[2 * e], in = linear.place[2 * e + 1];
            for (int64_t r = 0; r < count; r++) sums[r * kStrip + out] += linear.value[e] * widen(from[r * linear.in + in]);
        }
        give(row, count);
    }
}

inline int64_t padded_rows(int64_t rows) { return (rows + kTile - 1) / kTile * kTile; }

// What a thread needs while it computes strips; grows and stays.
struct Scratch {
    alignas(64) float sums[2 * kTile * kStrip];
    bf16* decoded = nullptr;  // [in, 32], four blocks at least
    void fit(int64_t in) {
        if (in <= fits_) return;
        std::free(decoded);
        fits_ = std::max(in, 4 * kBlock);
        decoded = static_cast<bf16*>(std::aligned_alloc(64, fits_ * kStrip * sizeof(bf16)));
    }
    Scratch() = default;
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    ~Scratch() { std::free(decoded); }

   private:
    int64_t fits_ = 0;
};

// All strips of a linear, shared among the threads of the enclosing parallel region, which must hold Tiles. x [padded
// rows, in]: rows up to a multiple of 16 must be there. take(strip, first, count, sums [count, 32]) stores what is wanted
// of a strip and of rows from `first` on. Ends with a barrier.
template <typename Take>
void multiply(const SqueezedLinear& linear, const bf16* x, int64_t rows, Scratch& scratch, const Take& take) {
    scratch.fit(linear.in);
    float* sums = scratch.sums;
#pragma omp for schedule(dynamic, 2)
    for (int64_t strip = 0; strip < linear.strips; strip++) {
        const auto give = [&](int64_t first, int64_t count) {
            if (linear.bias) {
                const float* bias = linear.bias + strip * kStrip;
                for (int64_t row = 0; row < count; row++)
                    for (int64_t c = 0; c < kStrip; c++) sums[row * kStrip + c] += bias[c];
            }
            take(strip, first, count, sums);
        };
#if SPECD_AMX
        if (rows > 2) {
            strip_by_tiles(linear, strip, x, rows, sums, scratch.decoded, give);
            continue;
        }
#endif
        strip_by_vectors(linear, strip, x, rows, sums, give);
    }
}

// y [rows, out]: a strip's sums of some rows, rounded.
inline void store_strip(const SqueezedLinear& linear, int64_t strip, int64_t first, int64_t count, const float* sums,
                        bf16* y) {
    const int64_t columns = std::min(kStrip, linear.out - strip * kStrip);
    for (int64_t row = 0; row < count; row++) {
        bf16* to = y + (first + row) * linear.out + strip * kStrip;
        for (int64_t c = 0; c < columns; c += kTile) narrow16(_mm512_load_ps(sums + row * kStrip + c), to + c);
    }
}

#endif  // SPECD_SQUEEZED

}  // namespace specd
