// cp.async of threads, and boxes of TMA.
#include "world.h"

namespace sim {
// ---- cp.async ----
void copy_async_16(unsigned to, const void* from, int valid_bytes) {
    ++world->work.copies;
    Fiber* fiber = world->current;
    Block* block = fiber->block;
    const void* pc = CALLER;
    if (to % 16 || (valid_bytes > 0 && reinterpret_cast<uintptr_t>(from) % 16))
        fatal("bounds", "a misaligned cp.async of 16 bytes, " + place(pc));
    shared_bytes(block, to, 16, "cp.async", pc);
    if (valid_bytes > 0) check_global(from, valid_bytes, "cp.async", pc);
    if (!fiber->has_copy_actor) {
        fiber->has_copy_actor = true;
        fiber->copy_actor = block->new_actor("cp.async of warp " + number(fiber->thread / 32));
        fiber->copied.block = block->number;
    }
    uint32_t time = ++fiber->copy_time;
    Snapshot clock = world->options.races ? snapshot(fiber) : nullptr;
    auto async = std::make_shared<Async>();
    async->when = world->schedule.copies;
    async->block = block;
    uint16_t number_of_actor = fiber->copy_actor;
    async->work = [=] {
        if (clock) {
            Actor actor = {clock.get(), block->launch->number, block->number, number_of_actor, time, false, pc};
            if (valid_bytes > 0) touch_global(from, valid_bytes, Access::READ, actor);
            touch_shared(block, to, 16, Access::WRITE, actor);
        }
        char bytes[16] = {};
        if (valid_bytes > 0) memcpy(bytes, from, valid_bytes);
        memcpy(shared_bytes(block, to, 16, "cp.async", pc), bytes, 16);
    };
    fiber->copies.push_back({async, fiber->copy_group});
    start_async(async);
}
void commit_copies() { ++world->current->copy_group; }

// Copies of finished groups are known, and all that was known when they were issued.
static void learn_copies(Fiber* fiber, Clock& clock, uint32_t time) {
    if (!world->options.races || !fiber->has_copy_actor) return;
    std::vector<uint32_t>& seen = clock.own.seen;
    if (seen.size() <= fiber->copy_actor) seen.resize(fiber->copy_actor + 1);
    seen[fiber->copy_actor] = std::max(seen[fiber->copy_actor], time);
}
void wait_for_copies(int pending) {
    Fiber* fiber = world->current;
    int before = fiber->copy_group - pending;
    auto& copies = fiber->copies;
    size_t open = 0;
    for (auto& copy : copies) {
        if (copy.group < before)
            copy.async->run();
        else
            ++open;
    }
    copies.erase(
        std::remove_if(copies.begin(), copies.end(), [&](const Fiber::Copy& copy) { return copy.group < before; }),
        copies.end());
    learn_copies(fiber, fiber->clock, fiber->copy_time - static_cast<uint32_t>(open));
    changed(fiber);
    maybe_yield(4);
}
void arrive_when_copied(unsigned address) {
    Fiber* fiber = world->current;
    Block* block = fiber->block;
    const void* pc = CALLER;
    mbarrier_at(block, address, pc);
    std::vector<Fiber::Copy> copies = std::move(fiber->copies);
    fiber->copies.clear();
    auto clock = std::make_shared<Clock>(fiber->clock);
    learn_copies(fiber, *clock, fiber->copy_time);
    if (world->options.races) ++fiber->clock.own.seen[fiber->thread], changed(fiber);
    auto async = std::make_shared<Async>();
    async->when = world->schedule.copies;
    async->block = block;
    async->work = [=] {
        for (auto& copy : copies) copy.async->run();
        MBarrier& barrier = mbarrier_at(block, address, pc);
        if (world->options.races) barrier.clock.join(*clock);
        --barrier.pending;
        settle_barrier(barrier, pc);
    };
    start_async(async);
}

// ---- boxes ----
struct Box {
    Map map;
    int x, y, z, w;
    unsigned to, barrier;
    const void* pc;

    int lines() const { return static_cast<int>(map.box[1] * map.box[2] * map.box[3]); }

    // One line of the box, into a block; what lies outside of the tensor is zero.
    void copy_line(int line, Block* block, const Actor& actor) const {
        long at[4] = {x, y + line % static_cast<int>(map.box[1]),
                      z + line / static_cast<int>(map.box[1]) % static_cast<int>(map.box[2]),
                      w + line / static_cast<int>(map.box[1] * map.box[2])};
        bool is_inside = true;
        const unsigned char* row = map.pointer;
        for (int i = 1; i < 4; ++i) {
            is_inside &= at[i] >= 0 && at[i] < static_cast<long>(map.sizes[i]);
            row += at[i] * static_cast<long>(map.strides[i - 1]);
        }
        long first = std::max(0L, at[0]), last = std::min<long>(map.sizes[0], at[0] + map.box[0]);
        std::vector<unsigned char> bytes(map.box[0], 0);
        if (is_inside && first < last) {
            check_global(row + first, last - first, "a box", pc);
            if (world->options.races) touch_global(row + first, last - first, Access::READ, actor);
            memcpy(bytes.data() + (first - at[0]), row + first, last - first);
        }
        for (unsigned chunk = 0; chunk < map.box[0]; chunk += 16) {
            unsigned place = swizzled(to + line * map.box[0] + chunk, map.line);
            char* target = shared_bytes(block, place, 16, "a box", pc);
            touch_shared(block, place, 16, Access::WRITE, actor);
            memcpy(target, bytes.data() + chunk, 16);
        }
    }
};

static void copy_part(const Box& box, int first, int last, Block* block, const Snapshot& clock, uint32_t time) {
    if (block->live == 0) fatal("rule", "a box arrives in a block that has ended, " + place(box.pc));
    MBarrier& barrier = mbarrier_at(block, box.barrier, box.pc);
    Actor actor = {clock.get(), block->launch->number, block->number, barrier.actor, time, true, box.pc};
    for (int line = first; line < last; ++line) box.copy_line(line, block, actor);
    if (clock) {
        if (clock->block == block->number)
            barrier.clock.join(*clock);
        else
            barrier.clock.join_blocks(clock->all());
        Times times;
        times.seen.resize(barrier.actor + 1), times.async.resize(barrier.actor + 1);
        times.seen[barrier.actor] = times.async[barrier.actor] = time;
        barrier.clock.own.join(times);
    }
    barrier.bytes -= static_cast<long>(last - first) * box.map.box[0];
    settle_barrier(barrier, box.pc);
}

void copy_box(unsigned to_blocks, unsigned to, const void* map, unsigned barrier_address, int x, int y, int z, int w) {
    ++world->work.copies;
    Fiber* fiber = world->current;
    Box box = {{}, x, y, z, w, to, barrier_address, CALLER};
    memcpy(&box.map, map, sizeof(Map));
    if (box.map.magic != Map::MAGIC || reinterpret_cast<uintptr_t>(map) % 64)
        fatal("rule", "a box of something that is no tensor map, " + place(box.pc));
    if (to % 128) fatal("bounds", "a box goes to an address that is not a multiple of 128 bytes, " + place(box.pc));
    Cluster& cluster = *fiber->block->cluster;
    Snapshot clock = world->options.races ? snapshot(fiber) : nullptr;
    for (unsigned rank = 0; rank < 16; ++rank) {
        if (!(to_blocks >> rank & 1)) continue;
        if (rank >= cluster.blocks.size())
            fatal("bounds", "a box goes to a block that the cluster does not have, " + place(box.pc));
        Block* block = cluster.blocks[rank];
        if (block != fiber->block && !fiber->has_met_cluster)
            report("rule", "a box goes to another block, which may not have started: no barrier.cluster.wait before, " +
                               place(box.pc));
        MBarrier& barrier = mbarrier_at(block, barrier_address, box.pc);
        if (!barrier.published)
            report("rule", "a box counts at an mbarrier without fence.mbarrier_init before, " + place(box.pc));
        uint32_t time = ++barrier.actor_time;
        // In parts, which arrive each at its own time.
        int lines = box.lines(), parts = world->schedule.copies == When::EARLY ? 1 : std::min(lines, 4);
        for (int part = 0; part < parts; ++part) {
            int first = lines * part / parts, last = lines * (part + 1) / parts;
            auto async = std::make_shared<Async>();
            async->when = world->schedule.copies;
            async->block = block;
            async->is_box = true;
            async->work = [=] { copy_part(box, first, last, block, clock, time); };
            start_async(async);
        }
    }
    maybe_yield(4);
}
}  // namespace sim
