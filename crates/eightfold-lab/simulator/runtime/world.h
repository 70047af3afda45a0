// The simulated device: launches of blocks of warps of threads, what is on its way, and what was found to be wrong.
//
// A thread of a kernel is a fiber. Everything that runs belongs to one `World`, of the thread of the host that called.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csetjmp>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include "numbers.h"
#include "order.h"
#include "simulated.h"

namespace sim {
constexpr unsigned SHARED_BASE = 1024;  // the 32-bit address of the first byte of shared memory
constexpr size_t STACK_BYTES = 256 << 10;
constexpr unsigned REGISTERS = 65536;  // of a multiprocessor

// What a seed decides.
enum class When { EARLY, LATE, RANDOM };
struct Schedule {
    enum { IN_TURN, RANDOM, BY_PRIORITY, WITH_LAGGARDS } order = IN_TURN;  // of threads that can run
    When copies = When::EARLY, products = When::EARLY;
    unsigned blocks_together = 1;
    bool launches_overlap = false;

    explicit Schedule(uint64_t seed);
};

// A kernel that is loaded: a library with a thread-local image of a block's shared memory.
struct Module {
    std::string path;
    void* library = nullptr;
};
struct Image {
    char* start = nullptr;  // of all thread-local memory of the library, for the thread of the host that runs
    size_t bytes = 0;
    size_t dynamic_at = 0;  // where what the launch asks for begins
};

struct Fiber;
struct Warp;
struct Block;
struct Launch;

// Why a thread does not run.
struct Waiting {
    const char* what = "";
    unsigned number = 0, count = 0;
    const void* pc = nullptr;
};

// What a thread that waits for others is put into.
using Waiters = std::vector<Fiber*>;

// Work that happens at a time of its own.
struct Async {
    std::function<void()> work;
    When when;
    Block* block;  // whose memory or barrier it changes
    bool is_box = false, done = false;

    void run() {
        if (done) return;
        done = true;
        work();
    }
};
using AsyncPointer = std::shared_ptr<Async>;

struct MBarrier {
    unsigned arrivals = 0, phase = 0;
    long pending = 0, bytes = 0;
    unsigned maker = 0;      // thread
    uint32_t made = 0;       // at this time of it
    bool published = false;  // fence.mbarrier_init
    uint16_t actor = 0;      // of its boxes
    uint32_t actor_time = 0;
    Clock clock, done;  // of those who arrived, and of them when the last phase was complete
    Waiters waiters;
};

struct NumberedBarrier {
    int arrived = 0, expected = 0;
    unsigned generation = 0;
    bool any = false, result = false;
    Clock clock, done;
    Waiters waiters;
};

// A wgmma of one warp.
struct Operation {
    Product product;
    int group = 0, issued = 0;
    std::vector<uint32_t> slots[32];
    const uint32_t* a_place[32] = {};
    uint32_t a_registers[32][4];
    Clock clock;
    const void* pc = nullptr;
};

struct Warp {
    Block* block = nullptr;
    unsigned index = 0, priority = 0;
    unsigned laggard = 0;       // a lane that runs when no other can, where there are some
    std::vector<Fiber*> ready;  // where warps have priorities

    // Lanes that meet.
    int meeting = 0, arrived = 0;
    const void* meeting_pc = nullptr;
    unsigned generation = 0;
    Shown shown[2][32];
    Waiters waiters;
    Clock clock, done;

    // Products.
    std::deque<Operation> operations;
    int first_operation = 0;
    bool has_actor = false;
    uint16_t actor = 0;
    uint32_t actor_time = 0;
    Clock unit;                     // what its products know
    std::map<int, Clock> by_group;  // and knew, when a group was done

    unsigned registers = 0;  // of each thread
};

// An accumulator of a product. While it is on its way a token with its number stands for it, which is NaN to whoever
// looks.
struct Slot {
    uint32_t value;
    int operation;  // the last that adds to it
    bool is_live;
};
constexpr uint32_t TOKEN = 0xffa50000;

struct Fiber {
    void* sp = nullptr;
    char* stack = nullptr;
    Block* block = nullptr;
    unsigned thread = 0;
    bool is_done = false, must_resolve = false;
    Waiting waiting;
    Clock clock;
    Snapshot snapshot;  // of it, as long as it has not changed
    uint64_t last_atomic = 0;

    // cp.async.
    struct Copy {
        AsyncPointer async;
        int group;
    };
    std::vector<Copy> copies;
    int copy_group = 0;
    bool has_copy_actor = false;
    uint16_t copy_actor = 0;
    uint32_t copy_time = 0;
    Clock copied;

    // Products.
    std::vector<Slot> slots;
    uint32_t first_slot =
        0;  // the number of the first: numbers are not used again, lest an old token be taken for a new one
    int operation = 0, product_group = 0, resolved_before = 0;
    std::vector<int> group_ends;  // products issued when a group was closed
    bool is_fenced = false;

    unsigned cluster_phase = 0;
    bool has_met_cluster = false;

    Warp& warp() const;
    // The accumulator that a word stands for, if it does.
    Slot* slot_of(uint32_t word) {
        size_t index = (word - first_slot) & 0xffff;
        bool is_token = (word & 0xffff0000) == TOKEN && index < slots.size() && slots[index].is_live;
        return is_token ? &slots[index] : nullptr;
    }
    unsigned lane() const { return thread % 32; }
};

struct Cluster {
    unsigned arrived = 0, generation = 0, threads = 0;
    Knowledge clock, done;
    uint32_t launches = 0;
    Waiters waiters;
    std::vector<Block*> blocks;
};

struct Block {
    Launch* launch = nullptr;
    unsigned index = 0, rank = 0;
    uint32_t number = 0;  // among all blocks that ever ran
    Cluster* cluster = nullptr;
    std::vector<char> image;  // of its shared memory, while another block's is in place
    bool is_in_place = false, lets_next_start = false;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    std::map<unsigned, MBarrier> mbarriers;
    NumberedBarrier numbered[16];
    std::vector<Cell> cells;
    std::vector<std::string> actors;  // beyond the threads: what each is
    unsigned live = 0, registers_left = 0;
    Waiters for_registers;
    std::vector<Fiber*> ready;
    size_t next_ready = 0;

    uint16_t new_actor(const std::string& name) {
        actors.push_back(name);
        return static_cast<uint16_t>(fibers.size() + actors.size() - 1);
    }
};

struct Launch {
    uint32_t number = 0, known = 0;  // all launches up to `known` are done for it from its start
    void (*entry)(void*) = nullptr;
    std::string name;
    Module* module = nullptr;
    Image image;
    unsigned grid = 0, threads = 0, dynamic_bytes = 0, cluster = 1;
    std::vector<char> argument_bytes;
    bool is_dependent = false;
    char* argument = nullptr;  // aligned as a kernel wants it

    unsigned next_block = 0, blocks_done = 0, running = 0, let_start = 0;
    std::vector<std::unique_ptr<Block>> blocks;
    std::vector<std::unique_ptr<Cluster>> clusters;
    Waiters waiting_for_end;  // of the launch after
    bool is_done() const { return blocks_done == grid; }
};

struct Options {
    uint64_t seed = 0;
    bool races = true;
    double seconds = 0;  // that a launch may take; no limit if zero
};

// What the threads of launches did, counted: it follows from the kernel and the schedule alone, and is no time.
struct Counts {
    unsigned long long shared = 0, global = 0;  // accesses, whatever their size
    unsigned long long met = 0;                 // where threads meet or wait for each other, in a warp or at a barrier
    unsigned long long products = 0;            // of tensor cores, once for each thread
    unsigned long long copies = 0;              // cp.async and boxes
};

struct World {
    Options options;
    Counts work;
    Schedule schedule{0};
    uint64_t random = 0;
    std::vector<std::string> findings;
    std::set<std::string> found;
    unsigned long long switches = 0, runs = 0;

    Fiber* current = nullptr;
    void* scheduler_sp = nullptr;
    Position position;
    std::vector<Launch*> launches;  // in the order of the stream; more than one if they overlap
    std::vector<Block*> resident;
    std::vector<AsyncPointer> in_flight;
    std::map<Module*, Block*> in_place;
    Block* turn = nullptr;  // whose threads run
    unsigned turn_left = 0;
    uint64_t atomics = 0;
    std::map<const void*, std::pair<uint64_t, Knowledge>> atomic_places;  // the last atomic there, and what it told
    std::vector<char*> stacks;
    bool failed = false, running = false;
    sigjmp_buf crash;
    std::chrono::steady_clock::time_point begun;

    uint32_t random_word() {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        return static_cast<uint32_t>(random >> 33);
    }
    bool chance(unsigned of) { return random_word() % of == 0; }
};
extern __attribute__((tls_model("initial-exec"))) thread_local World* world;
World& this_world();

// Findings. A fatal one ends the launch.
std::string place(const void* pc);
void report(const char* kind, const std::string& text);
[[noreturn]] void fatal(const char* kind, const std::string& text);
inline std::string number(long long n) { return std::to_string(n); }
inline std::string who(const Fiber& fiber) {
    return "thread " + number(fiber.thread) + " of block " + number(fiber.block->index);
}
std::string name_of(const Epoch& epoch);

// Scheduling.
void to_scheduler();
void park(Waiters& waiters, const Waiting& why);
void make_ready(Fiber* fiber);
void wake(Waiters& waiters);
void maybe_yield(unsigned of);
void start_async(const AsyncPointer& async);
bool run_launches(std::vector<std::unique_ptr<Launch>>& launches);

// Clocks.
Snapshot snapshot(Fiber* fiber);
void changed(Fiber* fiber);
void release(Clock& to, Fiber* fiber);
void acquire(const Clock& from, Fiber* fiber);
Actor thread_actor(Fiber* fiber, const void* pc);

// Memory.
constexpr unsigned NOWHERE = ~0u;
char* shared_bytes(Block* block, unsigned address, unsigned bytes, const char* who, const void* pc);
// How much of what is read must have been written.
enum class Written { ALL, SOME, NONE };
void touch_shared(Block* block, unsigned address, unsigned bytes, Access access, const Actor& actor,
                  Written must_be = Written::ALL);
void check_global(const void* address, size_t bytes, const char* what, const void* pc);
void touch_global(const void* address, size_t bytes, Access access, const Actor& actor);
void write_by_host(const void* address, size_t bytes);
bool is_global(const void* address);
void* allocate(size_t bytes);
bool release_memory(void* address);
bool allocation_of(const void* address, void** start, size_t* bytes);
void free_and_total(size_t* free_bytes, size_t* total_bytes);
Image image_of(Module* module);

void settle_barrier(MBarrier& barrier, const void* pc);
MBarrier& mbarrier_at(Block* block, unsigned address, const void* pc);
void thread_ends(Fiber* fiber);
void resolve(Fiber* fiber);

// What a tensor map holds, in its 128 bytes.
struct Map {
    static constexpr uint64_t MAGIC = 0x70616d2d72736e74;
    uint64_t magic;
    const unsigned char* pointer;
    uint64_t strides[3];
    uint32_t sizes[4], box[4];
    uint32_t line;  // that chunks are exchanged within
};
static_assert(sizeof(Map) <= 128, "a CUtensorMap has as much room");

inline unsigned swizzled(unsigned address, unsigned line) {
    return address ^ (address >> 7 & (line == 128 ? 7 : 3)) << 4;
}

#define CALLER __builtin_return_address(0)
}  // namespace sim
