// Products of the tensor cores.
#include "world.h"

namespace sim {
void meet_for_products(bool is_fence, const void* pc);

// ---- numbers ----
// Bit for bit as an H200 adds, found by comparing (docs/src/simulator.md):
//   wgmma, FP8: 32 products and the sum so far are aligned to the largest exponent among them, where that of a product
//   is
//     the sum of its factors' exponents; what lies more than 13 bits below is cut off, toward zero, and the rest is
//     added exactly. A sum in f32 keeps 13 bits after its first, the others are cut off; one in f16 is rounded once, to
//     nearest.
//   mma.sync, f16: the same with 25 bits, and 23 in the sum.
//   mma.sync, FP8: two of those, from zero, on every other pair of values; then the sum so far is added in f32.
constexpr int WGMMA_BITS = 13, MMA_BITS = 25, F32_BITS = 23, DEPTH = 32;

// A value is mantissa · 2^exponent, the mantissa below 16 (E4M3) or 8 (E5M2).
struct Parts {
    int32_t mantissa[256], exponent[256];

    explicit Parts(const float* values) {
        for (int code = 0; code < 256; ++code) {
            int e = 0;
            float fraction = std::frexp(values[code], &e);
            bool counts = std::isfinite(values[code]) && values[code] != 0;
            // Subnormal values, too, have their first bit in the same place.
            mantissa[code] = counts ? static_cast<int32_t>(std::ldexp(fraction, 4)) : 0;
            exponent[code] = counts ? e - 4 : -1000;
        }
    }
};
static const Parts parts_e4m3(tables.e4m3), parts_e5m2(tables.e5m2);

// A line of a matrix: 32 values in a form that can be multiplied fast.
struct Line {
    int32_t mantissa[DEPTH], exponent[DEPTH];
    float special;  // NaN or infinite if one of them is, else 0
    float value[DEPTH];
    int8_t whole[DEPTH];

    void set(const unsigned char* codes, bool e5m2) {
        const Parts& parts = e5m2 ? parts_e5m2 : parts_e4m3;
        const float* values = tables.of(e5m2);
        special = 0;
        memcpy(whole, codes, DEPTH);
        for (int i = 0; i < DEPTH; ++i) {
            mantissa[i] = parts.mantissa[codes[i]];
            exponent[i] = parts.exponent[codes[i]];
            value[i] = values[codes[i]];
            special += value[i] * 0.0f;
        }
    }
};

static int64_t cut(int64_t total, int bits) {
    uint64_t magnitude = static_cast<uint64_t>(total < 0 ? -total : total);
    int length = magnitude ? 64 - __builtin_clzll(magnitude) : 0, drop = std::max(0, length - 1 - bits);
    magnitude = magnitude >> drop << drop;
    return total < 0 ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
}

static int exponent_of(float x) { return static_cast<int>(bits(x) >> 23 & 255) - 127; }
static double power_of_two(int exponent) {
    uint64_t word = static_cast<uint64_t>(exponent + 1023) << 52;
    double power;
    memcpy(&power, &word, 8);
    return power;
}

// INT8: exactly.
static int32_t add_integers(const Line& a, const Line& b, int32_t sum) {
    for (int i = 0; i < DEPTH; ++i) sum += a.whole[i] * b.whole[i];
    return sum;
}

static double add_products(const Line& a, const Line& b, float sum, bool half_sums) {
    if (!(a.special == 0 && b.special == 0 && std::isfinite(sum))) {
        for (int i = 0; i < DEPTH; ++i) sum += a.value[i] * b.value[i];
        return std::isnan(sum) ? from_bits(0x7fffffff) : sum;
    }
    int32_t exponents[DEPTH], products[DEPTH], largest = -1000;
    for (int i = 0; i < DEPTH; ++i) {
        products[i] = a.mantissa[i] * b.mantissa[i];
        exponents[i] = a.exponent[i] + b.exponent[i];
        largest = std::max(largest, exponents[i]);
    }
    // Mantissas are from 8 to 15: a factor's first bit counts 2^3.
    int first_bit = std::max(largest + 6, sum == 0 ? -1000 : exponent_of(sum));
    if (first_bit < -900) return 0.0;
    int unit = first_bit - WGMMA_BITS;
    int64_t total = static_cast<int64_t>(static_cast<double>(sum) * power_of_two(-unit));
    int32_t near = 0;
    for (int i = 0; i < DEPTH; ++i) {
        int left = std::max(-31, std::min(exponents[i] - unit, 31));
        int32_t magnitude = products[i] < 0 ? -products[i] : products[i];
        int32_t aligned = left >= 0 ? magnitude << (left & 31) : magnitude >> (-left & 31);
        near += products[i] < 0 ? -aligned : aligned;
    }
    total += near;
    return static_cast<double>(half_sums ? total : cut(total, WGMMA_BITS)) * power_of_two(unit);
}

// 16 products of values that f16 can say, and the sum so far.
static float add_16(const float* a, const float* b, float sum) {
    constexpr int COUNT = 16;
    double products[COUNT];
    int largest = sum == 0 ? -1000 : exponent_of(sum);
    double total = sum;
    for (int i = 0; i < COUNT; ++i) {
        products[i] = static_cast<double>(a[i]) * b[i];
        total += products[i];
        int exponent = products[i] == 0 ? -1000 : exponent_of(a[i]) + exponent_of(b[i]);
        largest = std::max(largest, exponent);
    }
    if (!std::isfinite(total) || largest < -900) return static_cast<float>(total);
    int unit = largest - MMA_BITS;
    double units = power_of_two(-unit);
    int64_t whole = static_cast<int64_t>(sum * units);
    for (int i = 0; i < COUNT; ++i) whole += static_cast<int64_t>(products[i] * units);
    return static_cast<float>(static_cast<double>(cut(whole, F32_BITS)) * power_of_two(unit));
}

// What the thread's rows and columns are, value by value: of every word those that `value` takes out of it.
template <int PER_WORD, typename Value>
static void gather(const Shown* lanes, bool of_a, int index, float* to, Value value) {
    int group = world->current->lane() / 4, quad = world->current->lane() % 4;
    for (int half = 0; half < 2; ++half)
        for (int q = 0; q < 4; ++q) {
            uint64_t words = of_a ? lanes[4 * group + q].words[half] : lanes[4 * (2 * quad + index) + q].words[2];
            unsigned word = static_cast<unsigned>(words >> 32 * (of_a ? index : half));
            for (int e = 0; e < PER_WORD; ++e) to[(4 * half + q) * PER_WORD + e] = value(word, e);
        }
}

void multiply_f16(float* sum, const Shown* lanes) {
    ++world->work.products;
    auto value = [](unsigned word, int e) { return f16_to_float(static_cast<uint16_t>(word >> 16 * e)); };
    float rows[2][16], columns[2][16];
    for (int i = 0; i < 2; ++i) {
        gather<2>(lanes, true, i, rows[i], value);
        gather<2>(lanes, false, i, columns[i], value);
    }
    for (int i = 0; i < 4; ++i) sum[i] = add_16(rows[i / 2], columns[i % 2], sum[i]);
}

void multiply_fp8(float* sum, const Shown* lanes, bool a_e5m2, bool b_e5m2) {
    ++world->work.products;
    // The first pair of every four values, then the second.
    float rows[2][2][16], columns[2][2][16];
    for (int pair = 0; pair < 2; ++pair)
        for (int i = 0; i < 2; ++i) {
            auto value = [&](bool e5m2) {
                return [=](unsigned word, int e) { return tables.of(e5m2)[word >> (16 * pair + 8 * e) & 255]; };
            };
            gather<2>(lanes, true, i, rows[pair][i], value(a_e5m2));
            gather<2>(lanes, false, i, columns[pair][i], value(b_e5m2));
        }
    for (int i = 0; i < 4; ++i) {
        float first = add_16(rows[0][i / 2], columns[0][i % 2], 0.0f);
        sum[i] += add_16(rows[1][i / 2], columns[1][i % 2], first);
    }
}

// ---- exponentials ----
// The hardware cuts the result off, toward zero, where it is not too large for f16.
const uint16_t* exp2_of_halves() {
    static const std::vector<uint16_t> powers = [] {
        std::vector<uint16_t> all(65536);
        for (uint32_t half = 0; half < all.size(); ++half) {
            double power = std::exp2(static_cast<double>(f16_to_float(static_cast<uint16_t>(half))));
            uint16_t nearest = to_f16(power);
            bool is_above = power < 65536.0 && f16_to_float(nearest) > power;
            all[half] = static_cast<uint16_t>(nearest - is_above);
        }
        return all;
    }();
    return powers.data();
}

// ---- wgmma ----
static void read_line(Block* block, const Operation& operation, unsigned long long descriptor, int row, bool e5m2,
                      Line& line, const Actor& actor) {
    unsigned width = descriptor >> 62 == 1 ? 128 : 64;
    unsigned start = static_cast<unsigned>(descriptor & 0x3fff) << 4,
             group = static_cast<unsigned>(descriptor >> 32 & 0x3fff) << 4;
    unsigned char codes[DEPTH];
    for (int half = 0; half < 2; ++half) {
        unsigned address = swizzled(start + row / 8 * group + row % 8 * width + 16 * half, width);
        const char* bytes = shared_bytes(block, address, 16, "a product's read", operation.pc);
        touch_shared(block, address, 16, Access::READ, actor, Written::NONE);
        memcpy(codes + 16 * half, bytes, 16);
    }
    line.set(codes, e5m2);
}

static void execute(Block* block, Warp& warp, Operation& operation) {
    if (!warp.has_actor) {
        warp.has_actor = true;
        warp.actor = block->new_actor("wgmma of warp " + number(warp.index));
        warp.unit.block = block->number;
    }
    uint32_t time = ++warp.actor_time;
    if (world->options.races) {
        Times done;
        done.seen.resize(warp.actor + 1), done.async.resize(warp.actor + 1);
        done.seen[warp.actor] = done.async[warp.actor] = time;
        warp.unit.join(operation.clock);
        warp.unit.own.join(done);
        warp.by_group[operation.group] = warp.unit;
        while (warp.by_group.size() > 16) warp.by_group.erase(warp.by_group.begin());
    }
    Actor actor = {&operation.clock, block->launch->number, block->number, warp.actor, time, true, operation.pc};
    const Product& product = operation.product;
    // Not in thread-local memory: of that a library which is loaded late has little.
    static thread_local std::unique_ptr<Line[]> lines;
    if (!lines) lines.reset(new Line[16 + 256]);
    Line *a = lines.get(), *b = a + 16;
    Fiber* lanes = &block->fibers[32 * warp.index];
    bool in_registers = operation.a_place[0] != nullptr;
    if (in_registers) {
        unsigned char codes[16][DEPTH];
        for (int lane = 0; lane < 32; ++lane) {
            const uint32_t* now = operation.a_place[lane];
            // Frames that are gone are not looked at.
            bool is_alive = reinterpret_cast<const char*>(now) >= static_cast<char*>(lanes[lane].sp);
            if (is_alive && memcmp(now, operation.a_registers[lane], 16) != 0)
                report("rule", "registers of a product in flight were changed, " + place(operation.pc));
            for (int i = 0; i < 4; ++i)
                memcpy(&codes[lane / 4 + i % 2 * 8][i / 2 * 16 + lane % 4 * 4], &operation.a_registers[lane][i], 4);
        }
        for (int row = 0; row < 16; ++row) a[row].set(codes[row], product.a_e5m2);
    } else {
        for (int row = 0; row < 16; ++row)
            read_line(block, operation, product.a, static_cast<int>(warp.index % 4) * 16 + row, product.a_e5m2, a[row],
                      actor);
    }
    for (int column = 0; column < product.columns; ++column)
        read_line(block, operation, product.b, column, product.b_e5m2, b[column], actor);
    for (int lane = 0; lane < 32; ++lane) {
        auto slot = [&](int i) -> uint32_t& {
            return lanes[lane].slots[operation.slots[lane][i] - lanes[lane].first_slot].value;
        };
        for (int j = 0; j < product.columns / 8; ++j)
            for (int half = 0; half < 2; ++half) {
                const Line& row = a[lane / 4 + 8 * half];
                int column = 8 * j + lane % 4 * 2;
                if (product.integers) {
                    for (int e = 0; e < 2; ++e) {
                        uint32_t& sum = slot(4 * j + 2 * half + e);
                        int32_t before = product.accumulate ? static_cast<int32_t>(sum) : 0;
                        sum = static_cast<uint32_t>(add_integers(row, b[column + e], before));
                    }
                } else if (product.half_sums) {
                    uint32_t& pair = slot(2 * j + half);
                    uint32_t sums = 0;
                    for (int e = 0; e < 2; ++e) {
                        float before = product.accumulate ? f16_to_float(static_cast<uint16_t>(pair >> 16 * e)) : 0;
                        sums |= static_cast<uint32_t>(to_f16(add_products(row, b[column + e], before, true))) << 16 * e;
                    }
                    pair = sums;
                } else {
                    for (int e = 0; e < 2; ++e) {
                        uint32_t& sum = slot(4 * j + 2 * half + e);
                        float before = product.accumulate ? from_bits(sum) : 0;
                        sum = bits(static_cast<float>(add_products(row, b[column + e], before, false)));
                    }
                }
            }
    }
}

static void execute_next(Block* block, Warp& warp) {
    if (warp.operations.empty() || warp.operations.front().issued < 32) return;
    execute(block, warp, warp.operations.front());
    warp.operations.pop_front();
    ++warp.first_operation;
}

void fence_products() {
    meet_for_products(true, CALLER);  // .sync.aligned: no lane runs ahead of the others
    world->current->is_fenced = true;
}
void commit_products() {
    Fiber* fiber = world->current;
    ++fiber->product_group;
    fiber->group_ends.push_back(fiber->operation);
}

void multiply(const Product& product, uint32_t* sums, const uint32_t* a_registers) {
    ++world->work.products;
    Fiber* fiber = world->current;
    Block* block = fiber->block;
    Warp& warp = fiber->warp();
    unsigned lane = fiber->lane();
    int count = product.half_sums ? product.columns / 4 : product.columns / 2;
    if (!fiber->is_fenced)
        report("rule", "wgmma without wgmma.fence since registers could be changed, " + place(CALLER));
    size_t index = fiber->operation++ - warp.first_operation;
    if (index >= warp.operations.size()) {
        warp.operations.emplace_back();
        Operation& made = warp.operations.back();
        made.product = product;
        made.group = fiber->product_group;
        made.clock.block = block->number;
        made.pc = CALLER;
    }
    Operation& operation = warp.operations[index];
    const Product& other = operation.product;
    if (other.a != product.a || other.b != product.b || other.accumulate != product.accumulate ||
        operation.group != fiber->product_group)
        report("rule", "lanes of a warp issue different products, " + place(CALLER));
    if (world->options.races) operation.clock.join(fiber->clock);
    operation.a_place[lane] = a_registers;
    if (a_registers) memcpy(operation.a_registers[lane], a_registers, 16);
    operation.slots[lane].resize(count);
    for (int i = 0; i < count; ++i) {
        // What is not added to is a new accumulator, whatever the registers hold.
        Slot* slot = product.accumulate ? fiber->slot_of(sums[i]) : nullptr;
        if (!slot) {
            uint32_t token = TOKEN | ((fiber->first_slot + fiber->slots.size()) & 0xffff);
            fiber->slots.push_back({sums[i], 0, true});
            slot = &fiber->slots.back();
            sums[i] = token;
        }
        slot->operation = fiber->operation - 1;
        operation.slots[lane][i] = fiber->first_slot + static_cast<uint32_t>(slot - fiber->slots.data());
    }
    if (++operation.issued < 32) return;
    auto async = std::make_shared<Async>();
    async->when = world->schedule.products;
    async->block = block;
    Warp* of = &warp;
    async->work = [=] { execute_next(block, *of); };
    start_async(async);
}

// While the thread does not run, so that all its registers are on its stack.
void resolve(Fiber* fiber) {
    uint32_t* top = reinterpret_cast<uint32_t*>(fiber->stack + STACK_BYTES);
    auto is_done = [&](const Slot& slot) { return slot.is_live && slot.operation < fiber->resolved_before; };
    for (uint32_t* word = static_cast<uint32_t*>(fiber->sp); word < top; ++word) {
        if ((*word & 0xffff0000) != TOKEN) continue;
        const Slot* slot = fiber->slot_of(*word);
        if (slot && is_done(*slot)) *word = slot->value;
    }
    bool any = false;
    for (Slot& slot : fiber->slots) {
        if (is_done(slot)) slot.is_live = false;
        any |= slot.is_live;
    }
    if (any) return;
    fiber->first_slot += static_cast<uint32_t>(fiber->slots.size());
    fiber->slots.clear();
}

void wait_for_products(int pending) {
    Fiber* fiber = world->current;
    Warp& warp = fiber->warp();
    meet_for_products(false, CALLER);
    int limit = fiber->product_group - pending;
    while (!warp.operations.empty() && warp.operations.front().group < limit && warp.operations.front().issued == 32)
        execute_next(fiber->block, warp);
    // Some may be done that nobody waited for: to hand them out would hide a missing wait.
    if (limit > 0) fiber->resolved_before = fiber->group_ends[limit - 1];
    fiber->is_fenced = false;
    auto known = warp.by_group.lower_bound(limit);
    if (known != warp.by_group.begin()) acquire(std::prev(known)->second, fiber);
    fiber->must_resolve = true;
    make_ready(fiber);
    to_scheduler();
}
}  // namespace sim
