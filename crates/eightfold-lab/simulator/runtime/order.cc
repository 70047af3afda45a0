#include "order.h"
#include <algorithm>

namespace sim {
static void join_times(std::vector<uint32_t>& to, const std::vector<uint32_t>& from) {
    if (to.size() < from.size()) to.resize(from.size());
    uint32_t* target = to.data();
    const uint32_t* source = from.data();
    for (size_t i = 0, count = from.size(); i < count; ++i) target[i] = std::max(target[i], source[i]);
}

void Times::join(const Times& other) {
    join_times(seen, other.seen);
    join_times(async, other.async);
}

Knowledge joined(const Knowledge& a, const Knowledge& b) {
    if (a == b || !b) return a;
    if (!a) return b;
    auto both = std::make_shared<Blocks>(*a);
    for (const auto& [block, times] : *b) {
        std::shared_ptr<const Times>& place = (*both)[block];
        if (!place || place == times) {
            place = times;
        } else {
            auto joint = std::make_shared<Times>(*place);
            joint->join(*times);
            place = std::move(joint);
        }
    }
    return both;
}

void Clock::join(const Clock& other) {
    own.join(other.own);
    launches = std::max(launches, other.launches);
    others = joined(others, other.others);
    released = joined(released, other.released);
    observed = joined(observed, other.observed);
}

void Clock::join_blocks(const Knowledge& blocks) {
    others = joined(others, blocks);
    if (!blocks) return;
    auto mine = blocks->find(block);
    if (mine != blocks->end()) own.join(*mine->second);
}

Knowledge Clock::all() const {
    auto mine = std::make_shared<Blocks>();
    mine->emplace(block, std::make_shared<Times>(own));
    return joined(others, mine);
}

// Whether the actor knows of an access before. What threads wrote, TMA and the tensor cores must have been
// told of; what threads read is done when it is known to be.
static bool knows(const Actor& actor, const Epoch& before, bool& lacks_fence) {
    lacks_fence = false;
    const Clock& clock = *actor.clock;
    const Times* times = &clock.own;
    if (before.block != clock.block) {
        if (before.launch <= clock.launches) return true;
        if (!clock.others) return false;
        auto found = clock.others->find(before.block);
        if (found == clock.others->end()) return false;
        times = found->second.get();
    }
    if (!times->has(before.actor, before.time)) return false;
    lacks_fence = actor.is_async && !before.is_async && before.is_write && !times->has_async(before.actor, before.time);
    return !lacks_fence;
}

static bool is_same(const Epoch& before, const Actor& actor) {
    return before.block == actor.block && before.actor == actor.number;
}

constexpr size_t MOST_READERS = 64;  // that are remembered of a cell

bool touch(Cell& cell, uint8_t bytes, Access access, const Actor& actor, Race& race) {
    bool writes = access != Access::READ, races = false;
    auto check = [&](const Epoch& before) {
        if (races || !(before.bytes & bytes) || is_same(before, actor) || !(writes || before.is_write)) return;
        if (before.is_atomic && (access == Access::ATOMIC || (writes && actor.is_last_atomic))) return;
        bool lacks_fence;
        if (knows(actor, before, lacks_fence)) return;
        races = true;
        race = {before, lacks_fence};
    };
    check(cell.write);
    check(cell.read);
    if (cell.more)
        for (const Epoch& before : *cell.more) check(before);

    Epoch now;
    now.time = actor.time, now.launch = actor.launch, now.block = actor.block, now.actor = actor.number;
    now.bytes = bytes, now.is_async = actor.is_async, now.is_write = writes;
    now.is_atomic = access == Access::ATOMIC, now.pc = actor.pc;
    auto keep = [&](const Epoch& epoch) {
        if (!cell.more) cell.more = std::make_unique<std::vector<Epoch>>();
        cell.more->push_back(epoch);
    };
    if (writes) {
        cell.written |= bytes;
        cell.write.bytes &= ~bytes;
        cell.read.bytes &= ~bytes;
        if (cell.more) {
            for (Epoch& before : *cell.more) before.bytes &= ~bytes;
            cell.more->erase(
                std::remove_if(cell.more->begin(), cell.more->end(), [](const Epoch& e) { return !e.bytes; }),
                cell.more->end());
        }
        if (cell.write.bytes) keep(cell.write);
        cell.write = now;
        return races;
    }
    // A later read stands for one that it knows of.
    bool lacks_fence;
    auto stands_for = [&](const Epoch& before) {
        return !before.is_write && (before.bytes & ~bytes) == 0 &&
               (is_same(before, actor) || knows(actor, before, lacks_fence));
    };
    if (!cell.read.bytes || stands_for(cell.read)) {
        cell.read = now;
        return races;
    }
    if (cell.more) {
        for (Epoch& before : *cell.more)
            if (stands_for(before)) {
                before = now;
                return races;
            }
        if (cell.more->size() >= MOST_READERS) {
            (*cell.more)[now.time % MOST_READERS] = now;
            return races;
        }
    }
    keep(now);
    return races;
}
}  // namespace sim
