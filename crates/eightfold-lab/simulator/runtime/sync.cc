// Where threads meet: in a warp, at numbered barriers, at mbarriers, in a cluster; and where they wait for registers or
// for the launch before.
#include "world.h"

namespace sim {
Position& position() { return world->position; }

// ---- warps ----
static const char* const MEETINGS[] = {"a shuffle",  "a vote",      "a reduction",      "ldmatrix",  "mma",
                                       "__syncwarp", "wgmma.fence", "wgmma.wait_group", "setmaxnreg"};
enum { SYNC_WARP = 5, FENCE_PRODUCTS, WAIT_FOR_PRODUCTS, SET_REGISTERS };

// All lanes of the warp that have not ended.
static const Shown* meet(int meeting, const Shown& shown, bool orders_memory, const void* pc) {
    ++world->work.met;
    Fiber* fiber = world->current;
    Warp& warp = fiber->warp();
    if (warp.arrived == 0) warp.meeting = meeting, warp.meeting_pc = pc;
    if (warp.meeting != meeting)
        fatal("rule", "lanes of a warp are at different instructions: at " + std::string(MEETINGS[warp.meeting]) +
                          ", " + place(warp.meeting_pc) + ", and at " + MEETINGS[meeting] + ", " + place(pc));
    Shown* all = warp.shown[warp.generation & 1];
    all[fiber->lane()] = shown;
    if (orders_memory) release(warp.clock, fiber);
    if (++warp.arrived == 32) {
        warp.arrived = 0;
        ++warp.generation;
        if (orders_memory) warp.done = warp.clock;
        wake(warp.waiters);
        maybe_yield(2);
    } else {
        park(warp.waiters, {MEETINGS[meeting], 0, 0, pc});
    }
    if (orders_memory) acquire(warp.done, fiber);
    return all;
}
const Shown* meet_in_warp(Meeting meeting, const Shown& shown) {
    return meet(static_cast<int>(meeting), shown, false, CALLER);
}
void sync_warp() { meet(SYNC_WARP, {}, true, CALLER); }
void meet_for_products(bool is_fence, const void* pc) {
    meet(is_fence ? FENCE_PRODUCTS : WAIT_FOR_PRODUCTS, {}, false, pc);
}

// ---- numbered barriers ----
static void complete(NumberedBarrier& barrier) {
    barrier.arrived = 0;
    barrier.result = barrier.any;
    barrier.any = false;
    ++barrier.generation;
    if (world->options.races) barrier.done = barrier.clock;
    wake(barrier.waiters);
}
static NumberedBarrier& arrive_at(int index, int threads, const void* pc) {
    Fiber* fiber = world->current;
    if (index < 0 || index > 15) fatal("rule", "there is no barrier " + number(index) + ", " + place(pc));
    NumberedBarrier& barrier = fiber->block->numbered[index];
    if (threads % 32)
        report("rule", "barrier " + number(index) + " counts " + number(threads) +
                           " threads, which are no whole warps, " + place(pc));
    if (barrier.arrived > 0 && barrier.expected != threads)
        report("rule", "barrier " + number(index) + " is met by " + number(threads) + " and by " +
                           number(barrier.expected) + " threads, " + place(pc));
    barrier.expected = threads;
    ++world->work.met;
    release(barrier.clock, fiber);
    ++barrier.arrived;
    return barrier;
}
static bool meet_numbered(int index, int threads, bool condition, const void* pc) {
    NumberedBarrier& barrier = arrive_at(index, threads, pc);
    barrier.any |= condition;
    unsigned generation = barrier.generation;
    if (barrier.arrived == threads) {
        complete(barrier);
    } else {
        while (barrier.generation == generation)
            park(barrier.waiters, {"barrier", static_cast<unsigned>(index), static_cast<unsigned>(threads), pc});
    }
    bool result = barrier.result;
    acquire(barrier.done, world->current);
    maybe_yield(2);
    return result;
}
void sync_block() {
    // Threads that have ended are not waited for.
    ++world->work.met;
    Block* block = world->current->block;
    NumberedBarrier& barrier = block->numbered[0];
    release(barrier.clock, world->current);
    unsigned generation = barrier.generation;
    if (++barrier.arrived == static_cast<int>(block->live)) {
        complete(barrier);
    } else {
        while (barrier.generation == generation) park(barrier.waiters, {"barrier", 0, block->launch->threads, CALLER});
    }
    acquire(barrier.done, world->current);
    maybe_yield(2);
}
void sync_numbered(int barrier, int threads) { meet_numbered(barrier, threads, false, CALLER); }
bool any_numbered(int barrier, int threads, bool condition) {
    return meet_numbered(barrier, threads, condition, CALLER);
}
void arrive_numbered(int index, int threads) {
    NumberedBarrier& barrier = arrive_at(index, threads, CALLER);
    if (barrier.arrived == threads) complete(barrier);
    maybe_yield(4);
}

// ---- mbarriers ----
MBarrier& mbarrier_at(Block* block, unsigned address, const void* pc) {
    auto found = block->mbarriers.find(address);
    if (found == block->mbarriers.end())
        fatal("rule", "an mbarrier at +" + number(static_cast<long>(address) - SHARED_BASE) +
                          " is used that was never made, " + place(pc));
    return found->second;
}
// By the thread that runs: it must know that the barrier was made.
static MBarrier& known_mbarrier(unsigned address, const void* pc) {
    Fiber* fiber = world->current;
    MBarrier& barrier = mbarrier_at(fiber->block, address, pc);
    if (world->options.races && barrier.maker != fiber->thread && !fiber->clock.own.has(barrier.maker, barrier.made))
        report("race", "an mbarrier is used and nothing orders that behind its making by thread " +
                           number(barrier.maker) + ", " + place(pc));
    return barrier;
}
void settle_barrier(MBarrier& barrier, const void* pc) {
    if (barrier.pending < 0) report("rule", "more threads arrive at an mbarrier than it was made for, " + place(pc));
    if (barrier.pending > 0 || barrier.bytes != 0) return;
    ++barrier.phase;
    barrier.pending = barrier.arrivals;
    if (world->options.races) barrier.done.join(barrier.clock);
    wake(barrier.waiters);
}
void init_barrier(unsigned address, unsigned arrivals) {
    Fiber* fiber = world->current;
    Block* block = fiber->block;
    if (address % 8) fatal("bounds", "an mbarrier that is not at a multiple of 8 bytes, " + place(CALLER));
    shared_bytes(block, address, 8, "an mbarrier", CALLER);
    touch_shared(block, address, 8, Access::WRITE, thread_actor(fiber, CALLER));
    if (block->mbarriers.count(address)) report("rule", "an mbarrier is made twice, " + place(CALLER));
    MBarrier& barrier = block->mbarriers[address];
    barrier = MBarrier();
    barrier.arrivals = arrivals;
    barrier.pending = arrivals;
    barrier.maker = fiber->thread;
    barrier.made = fiber->clock.own.seen[fiber->thread];
    barrier.actor = block->new_actor("TMA");
    barrier.clock.block = barrier.done.block = block->number;
}
void arrive(unsigned address, unsigned expected_bytes) {
    ++world->work.met;
    MBarrier& barrier = known_mbarrier(address, CALLER);
    release(barrier.clock, world->current);
    barrier.bytes += expected_bytes;
    --barrier.pending;
    settle_barrier(barrier, CALLER);
    maybe_yield(4);
}
void wait_for_phase(unsigned address, unsigned parity) {
    ++world->work.met;
    MBarrier& barrier = known_mbarrier(address, CALLER);
    // Looked at when the thread runs: for one that is late, the phase after may be over too.
    while ((barrier.phase & 1) == parity) park(barrier.waiters, {"an mbarrier", address, 0, CALLER});
    acquire(barrier.done, world->current);
}
void publish_barriers() {
    for (auto& [address, barrier] : world->current->block->mbarriers)
        if (barrier.maker == world->current->thread) barrier.published = true;
}
void publish_stores() {
    if (!world->options.races) return;
    Fiber* fiber = world->current;
    Times& own = fiber->clock.own;
    if (own.async.size() < own.seen.size()) own.async.resize(own.seen.size());
    for (size_t i = 0; i < own.seen.size(); ++i) own.async[i] = std::max(own.async[i], own.seen[i]);
    ++own.seen[fiber->thread];
    changed(fiber);
}

// ---- registers ----
static void set_registers(unsigned registers, bool gives_up, const void* pc) {
    Fiber* fiber = world->current;
    meet(SET_REGISTERS, {}, false, pc);
    Warp& warp = fiber->warp();
    Block* block = fiber->block;
    if (registers % 8 || registers < 24 || registers > 256)
        fatal("rule", "setmaxnreg takes multiples of 8 from 24 to 256, not " + number(registers) + ", " + place(pc));
    if (fiber->lane() == 0) {
        if (gives_up ? registers > warp.registers : registers < warp.registers)
            report("rule", std::string("setmaxnreg.") + (gives_up ? "dec" : "inc") + " to " + number(registers) +
                               " from " + number(warp.registers) + ", " + place(pc));
        if (gives_up) {
            block->registers_left += 32 * (warp.registers - std::min(registers, warp.registers));
            wake(block->for_registers);
        } else {
            unsigned more = 32 * (registers - std::min(registers, warp.registers));
            while (block->registers_left < more) park(block->for_registers, {"registers", registers, 0, pc});
            block->registers_left -= more;
        }
        warp.registers = registers;
    }
    meet(SET_REGISTERS, {}, false, pc);
}
void give_up_registers(int registers) { set_registers(registers, true, CALLER); }
void take_registers(int registers) { set_registers(registers, false, CALLER); }

// ---- clusters ----
unsigned cluster_rank() { return world->current->block->rank; }
unsigned cluster_blocks() { return world->current->block->launch->cluster; }
void arrive_at_cluster(bool releases) {
    Fiber* fiber = world->current;
    Cluster& cluster = *fiber->block->cluster;
    if (fiber->cluster_phase > cluster.generation)
        fatal("rule", "barrier.cluster.arrive twice without a wait between, " + place(CALLER));
    fiber->cluster_phase = cluster.generation + 1;
    if (world->options.races && releases) {
        cluster.clock = joined(cluster.clock, fiber->clock.all());
        cluster.launches = std::max(cluster.launches, fiber->clock.launches);
        ++fiber->clock.own.seen[fiber->thread];
        changed(fiber);
    }
    if (++cluster.arrived == cluster.threads) {
        cluster.arrived = 0;
        ++cluster.generation;
        cluster.done = cluster.clock;
        wake(cluster.waiters);
    }
    maybe_yield(4);
}
void wait_for_cluster() {
    Fiber* fiber = world->current;
    Cluster& cluster = *fiber->block->cluster;
    if (fiber->cluster_phase == 0) fatal("rule", "barrier.cluster.wait without an arrival before, " + place(CALLER));
    while (cluster.generation < fiber->cluster_phase)
        park(cluster.waiters, {"the other blocks of the cluster", 0, 0, CALLER});
    fiber->has_met_cluster = true;
    if (!world->options.races) return;
    fiber->clock.join_blocks(cluster.done);
    fiber->clock.launches = std::max(fiber->clock.launches, cluster.launches);
    changed(fiber);
}

// Addresses of other blocks have the block's number, from 1 on, above.
unsigned in_block_of_cluster(unsigned address, int rank) { return address | static_cast<unsigned>(rank + 1) << 24; }
void store_in_cluster(unsigned address, unsigned value) {
    Fiber* fiber = world->current;
    Cluster& cluster = *fiber->block->cluster;
    unsigned rank = (address >> 24) - 1, inside = address & 0xffffff;
    if (rank >= cluster.blocks.size())
        fatal("bounds", "a store into a block that the cluster does not have, " + place(CALLER));
    Block* block = cluster.blocks[rank];
    if (block != fiber->block && !fiber->has_met_cluster)
        report("rule", "a store into another block, which may not have started: no barrier.cluster.wait before, " +
                           place(CALLER));
    if (block->live == 0) fatal("rule", "a store into a block of the cluster that has ended, " + place(CALLER));
    char* to = shared_bytes(block, inside, 4, "a write", CALLER);
    touch_shared(block, inside, 4, Access::WRITE, thread_actor(fiber, CALLER));
    memcpy(to, &value, 4);
    maybe_yield(4);
}

// ---- launches that overlap ----
void let_next_launch_start() {
    Block* block = world->current->block;
    if (block->lets_next_start) return;
    block->lets_next_start = true;
    ++block->launch->let_start;
}
void wait_for_last_launch() {
    Fiber* fiber = world->current;
    Launch* launch = fiber->block->launch;
    for (size_t i = 1; i < world->launches.size(); ++i)
        if (world->launches[i] == launch) {
            Launch* before = world->launches[i - 1];
            while (!before->is_done()) park(before->waiting_for_end, {"the launch before", 0, 0, CALLER});
            break;
        }
    fiber->clock.launches = std::max(fiber->clock.launches, launch->number - 1);
    changed(fiber);
}

void thread_ends(Fiber* fiber) {
    fiber->is_done = true;
    Block* block = fiber->block;
    if (fiber->lane() == 0 && !fiber->warp().operations.empty()) report("rule", "a warp ends with products in flight");
    // The one who picks threads counts it down when it is back.
    NumberedBarrier& all = block->numbered[0];
    if (all.arrived > 0 && all.arrived == static_cast<int>(block->live) - 1) complete(all);
}
}  // namespace sim
