// What happened before what: who knows of which access, and whether two accesses race.
//
// An actor is a thread, or what works for one: the cp.async of a thread, the products of a warp, the boxes of an
// mbarrier. Each counts its own time; a clock says up to which time of every actor its owner knows. A barrier joins
// clocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace sim {
// Times of the actors of one block. `async`: of what threads wrote, as much as TMA and the tensor cores
// see, which is what a thread knew at its last fence.proxy.async.
struct Times {
    std::vector<uint32_t> seen, async;

    void join(const Times& other);
    bool has(unsigned actor, uint32_t time) const { return actor < seen.size() && time <= seen[actor]; }
    bool has_async(unsigned actor, uint32_t time) const { return actor < async.size() && time <= async[actor]; }
};

// Times of several blocks. Never changed once it is made, so that many can hold the same.
using Blocks = std::map<uint32_t, std::shared_ptr<const Times>>;
using Knowledge = std::shared_ptr<const Blocks>;
Knowledge joined(const Knowledge& a, const Knowledge& b);

struct Clock {
    Times own;              // of the owner's block
    uint32_t block = 0;     // which that is
    uint32_t launches = 0;  // all of this launch and those before it is known
    Knowledge others;       // of other blocks of launches that run
    Knowledge released;     // what a fence lets the whole device see, once an atomic tells of it
    Knowledge observed;     // what atomics told of, and a fence is still to bring here

    void join(const Clock& other);
    void join_blocks(const Knowledge& blocks);
    Knowledge all() const;
};
using Snapshot = std::shared_ptr<const Clock>;

enum class Access : uint8_t { READ, WRITE, ATOMIC };

// One access, as memory remembers it.
struct Epoch {
    uint32_t time = 0, launch = 0, block = 0;
    uint16_t actor = 0;
    uint8_t bytes = 0;  // a bit for each of the cell's four
    bool is_async : 1, is_write : 1, is_atomic : 1;
    const void* pc = nullptr;

    Epoch() : is_async(false), is_write(false), is_atomic(false) {}
};

// The last accesses of four bytes, and which of them were ever written.
struct Cell {
    Cell() = default;
    Cell(Cell&&) = default;
    Cell& operator=(Cell&&) = default;
    Epoch write, read;
    std::unique_ptr<std::vector<Epoch>> more;  // what several actors did that do not know of each other
    uint8_t written = 0;
};

// Who makes an access now, and what it knows.
struct Actor {
    const Clock* clock;
    uint32_t launch, block;
    uint16_t number;
    uint32_t time;
    bool is_async;
    const void* pc;
    bool is_last_atomic = false;  // at this place, among all atomics
};

struct Race {
    Epoch before;
    bool lacks_fence;  // known, but not to the proxy that this access goes through
};

// Tells memory of an access to the bytes of a mask. True, and the other one, if there is one that it races with.
bool touch(Cell& cell, uint8_t bytes, Access access, const Actor& actor, Race& race);
}  // namespace sim
