// Fibers, which of them runs next, and when asynchronous work is done: by the seed.
#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include "world.h"

#if defined(__x86_64__)
extern "C" void sim_switch(void** save, void* load);
asm(R"(
.text
.type sim_switch, @function
sim_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size sim_switch, . - sim_switch
)");
static void* first_frame(char* top, void (*main)()) {
    uint64_t* words = reinterpret_cast<uint64_t*>(top);
    words[-1] = 0;
    words[-2] = reinterpret_cast<uint64_t>(main);
    return words - 8;
}
#else
// Contexts are kept on the stack that they are of, so that registers are found there.
#include <ucontext.h>
static void sim_switch(void** save, void* load) {
    ucontext_t here;
    *save = &here;
    swapcontext(&here, static_cast<ucontext_t*>(load));
}
static void* first_frame(char* top, void (*main)()) {
    ucontext_t* context = reinterpret_cast<ucontext_t*>(top - (sizeof(ucontext_t) + 63) / 64 * 64);
    getcontext(context);
    context->uc_stack.ss_sp = top - sim::STACK_BYTES;
    context->uc_stack.ss_size = reinterpret_cast<char*>(context) - (top - sim::STACK_BYTES);
    context->uc_link = nullptr;
    makecontext(context, main, 0);
    return context;
}
#endif

namespace sim {
thread_local World* world;

World& this_world() {
    static thread_local std::unique_ptr<World> own;
    if (!own) {
        own = std::make_unique<World>();
        world = own.get();
    }
    return *own;
}

Schedule::Schedule(uint64_t seed) {
    // 36 seeds, one after the other, meet every combination of these three.
    order = static_cast<decltype(order)>(seed % 4);
    copies = static_cast<When>(seed / 4 % 3);
    products = static_cast<When>((seed + seed / 12) % 3);
    blocks_together = seed % 5 == 0 ? 1 : 2 + seed / 2 % 3;
    launches_overlap = seed % 3 != 0;
}

Warp& Fiber::warp() const { return block->warps[thread / 32]; }

// ---- findings ----
std::string place(const void* pc) {
    Dl_info info;
    const char* before = static_cast<const char*>(pc) - 1;  // in the call, not behind it
    if (!dladdr(before, &info) || !info.dli_fname) return "{?}";
    char offset[24];
    snprintf(offset, sizeof offset, "+0x%zx", static_cast<size_t>(before - static_cast<const char*>(info.dli_fbase)));
    return "{" + std::string(info.dli_fname) + offset + "}";
}

constexpr size_t MOST_FINDINGS = 20;
void report(const char* kind, const std::string& text) {
    std::string line = std::string(kind) + ": " + text;
    world->failed = true;
    if (world->findings.size() < MOST_FINDINGS && world->found.insert(line).second) world->findings.push_back(line);
}

void fatal(const char* kind, const std::string& text) {
    report(kind, text);
    siglongjmp(world->crash, 1);
}

std::string name_of(const Epoch& epoch) {
    for (Block* block : world->resident)
        if (block->number == epoch.block) {
            bool is_thread = epoch.actor < block->fibers.size();
            if (is_thread) return "a thread of warp " + number(epoch.actor / 32);
            return block->actors[epoch.actor - block->fibers.size()];
        }
    return epoch.is_async ? "TMA, for a block that has ended," : "a thread of a block that has ended";
}

// ---- who runs ----
void to_scheduler() { sim_switch(&world->current->sp, world->scheduler_sp); }

void park(Waiters& waiters, const Waiting& why) {
    world->current->waiting = why;
    waiters.push_back(world->current);
    to_scheduler();
}

void make_ready(Fiber* fiber) {
    if (world->schedule.order == Schedule::BY_PRIORITY) {
        fiber->warp().ready.push_back(fiber);
    }
    fiber->block->ready.push_back(fiber);
}

void wake(Waiters& waiters) {
    for (Fiber* fiber : waiters) make_ready(fiber);
    waiters.clear();
}

void maybe_yield(unsigned of) {
    if (world->schedule.order == Schedule::IN_TURN || !world->chance(of)) return;
    make_ready(world->current);
    to_scheduler();
}

void start_async(const AsyncPointer& async) {
    if (async->when == When::EARLY) {
        async->run();
    } else {
        world->in_flight.push_back(async);
    }
}

static bool has_ready(const Block* block) { return block->ready.size() > block->next_ready; }

static Fiber* pick(Block* block) {
    std::vector<Fiber*>& ready = block->ready;
    Fiber* fiber;
    if (world->schedule.order == Schedule::RANDOM) {
        size_t chosen = world->random_word() % ready.size();
        fiber = ready[chosen];
        ready[chosen] = ready.back();
        ready.pop_back();
    } else if (world->schedule.order == Schedule::WITH_LAGGARDS) {
        // Almost always another one, if there is one.
        size_t chosen = world->random_word() % ready.size();
        auto lags = [&](size_t at) { return ready[at]->lane() == ready[at]->warp().laggard; };
        for (int tries = 0; lags(chosen) && tries < 64; ++tries) chosen = world->random_word() % ready.size();
        fiber = ready[chosen];
        ready[chosen] = ready.back();
        ready.pop_back();
    } else if (world->schedule.order == Schedule::BY_PRIORITY) {
        Warp* first = nullptr;
        for (Warp& warp : block->warps)
            if (!warp.ready.empty() && (!first || warp.priority > first->priority)) first = &warp;
        if (world->chance(500)) first->priority = world->random_word();
        size_t chosen = world->random_word() % first->ready.size();
        fiber = first->ready[chosen];
        first->ready[chosen] = first->ready.back();
        first->ready.pop_back();
        ready.pop_back();  // how many there are is all that is read of it
    } else {
        fiber = ready[block->next_ready++];
        if (block->next_ready >= 4096 && 2 * block->next_ready >= ready.size()) {
            ready.erase(ready.begin(), ready.begin() + block->next_ready);
            block->next_ready = 0;
        }
    }
    return fiber;
}

// One block for a while, then another: exchanging their shared memory takes time.
static Block* choose_block() {
    if (world->turn && world->turn_left > 0 && has_ready(world->turn)) {
        --world->turn_left;
        return world->turn;
    }
    std::vector<Block*>& blocks = world->resident;
    if (blocks.empty()) return nullptr;
    size_t first = world->random_word() % blocks.size();
    for (size_t i = 0; i < blocks.size(); ++i) {
        Block* block = blocks[(first + i) % blocks.size()];
        if (!has_ready(block)) continue;
        world->turn = block;
        world->turn_left = 64 + world->random_word() % 4096;
        return block;
    }
    return nullptr;
}

static void put_in_place(Block* block) {
    Block*& there = world->in_place[block->launch->module];
    if (there == block) return;
    const Image& image = block->launch->image;
    if (there) {
        memcpy(there->image.data(), image.start, image.bytes);
        there->is_in_place = false;
    }
    memcpy(image.start, block->image.data(), image.bytes);
    block->is_in_place = true;
    there = block;
}

static void fiber_main() {
    Fiber* fiber = world->current;
    Launch* launch = fiber->block->launch;
    launch->entry(launch->argument);
    thread_ends(world->current);
    to_scheduler();
    abort();
}

static Block* start_block(Launch* launch, Cluster* cluster, unsigned rank, uint32_t number_of_block) {
    auto owned = std::make_unique<Block>();
    Block* block = owned.get();
    block->launch = launch;
    block->index = launch->next_block++;
    block->rank = rank;
    block->number = number_of_block;
    block->cluster = cluster;
    block->image.assign(launch->image.bytes, static_cast<char>(0xff));  // NaN in every format
    block->live = launch->threads;
    block->fibers.resize(launch->threads);
    block->warps.resize((launch->threads + 31) / 32);
    if (world->options.races) block->cells.resize(launch->image.bytes / 4 + 1);
    // As many registers as a multiprocessor can give to each thread.
    unsigned registers = std::min(256u, REGISTERS / (32 * static_cast<unsigned>(block->warps.size())) / 8 * 8);
    for (unsigned i = 0; i < block->warps.size(); ++i) {
        Warp& warp = block->warps[i];
        warp.block = block, warp.index = i, warp.priority = world->random_word(), warp.registers = registers;
        warp.laggard = 1 + world->random_word() % 31;
    }
    block->registers_left = REGISTERS - registers * 32 * static_cast<unsigned>(block->warps.size());
    for (unsigned thread = 0; thread < launch->threads; ++thread) {
        Fiber& fiber = block->fibers[thread];
        fiber.block = block;
        fiber.thread = thread;
        fiber.clock.block = block->number;
        fiber.clock.launches = launch->known;
        fiber.clock.own.seen.assign(launch->threads, 0);
        fiber.clock.own.seen[thread] = 1;
        if (world->stacks.empty()) {
            void* stack =
                mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED)
                fatal("out of memory", "a launch of " + number(launch->threads) + " threads a block");
            world->stacks.push_back(static_cast<char*>(stack));
        }
        fiber.stack = world->stacks.back();
        world->stacks.pop_back();
        fiber.sp = first_frame(fiber.stack + STACK_BYTES, fiber_main);
        make_ready(&fiber);
    }
    world->resident.push_back(block);
    ++launch->running;
    launch->blocks.push_back(std::move(owned));
    return block;
}

static std::atomic<uint32_t> blocks_so_far{1}, launches_so_far{1};

static void start_cluster(Launch* launch) {
    launch->clusters.push_back(std::make_unique<Cluster>());
    Cluster* cluster = launch->clusters.back().get();
    cluster->threads = launch->cluster * launch->threads;
    for (unsigned rank = 0; rank < launch->cluster; ++rank)
        cluster->blocks.push_back(start_block(launch, cluster, rank, blocks_so_far++));
}

// Blocks start where there is room. A launch that may overlap starts when all blocks of the one before have let it.
static void start_blocks() {
    for (size_t i = 0; i < world->launches.size(); ++i) {
        Launch* launch = world->launches[i];
        if (i > 0) {
            Launch* before = world->launches[i - 1];
            bool may = launch->is_dependent && world->schedule.launches_overlap
                           ? before->let_start == before->grid && i < 3
                           : before->is_done() && i == 1;
            if (!may) return;
        }
        unsigned together = std::max(world->schedule.blocks_together, launch->cluster);
        while (launch->next_block < launch->grid && launch->running + launch->cluster <= together)
            start_cluster(launch);
    }
}

static void end_block(Block* block) {
    Launch* launch = block->launch;
    std::vector<AsyncPointer>& in_flight = world->in_flight;
    auto ends = [&](const AsyncPointer& async) {
        if (async->block != block) return false;
        if (async->is_box && !async->done) report("rule", "a block ends while a box is on its way into its memory");
        return true;
    };
    in_flight.erase(std::remove_if(in_flight.begin(), in_flight.end(), ends), in_flight.end());
    std::vector<Block*>& resident = world->resident;
    resident.erase(std::find(resident.begin(), resident.end(), block));
    if (world->turn == block) world->turn = nullptr;
    if (block->is_in_place) world->in_place[launch->module] = nullptr;
    for (Fiber& fiber : block->fibers) world->stacks.push_back(fiber.stack);
    --launch->running;
    ++launch->blocks_done;
    if (!block->lets_next_start) ++launch->let_start;
    if (launch->is_done()) wake(launch->waiting_for_end);
    // Of a block that has ended nothing is kept but what memory remembers.
    std::vector<Fiber>().swap(block->fibers);
    std::vector<Warp>().swap(block->warps);
    std::vector<Cell>().swap(block->cells);
    std::vector<char>().swap(block->image);
    while (!world->launches.empty() && world->launches.front()->is_done())
        world->launches.erase(world->launches.begin());
}

static void tell_deadlock() {
    struct Group {
        unsigned count = 0;
        const Fiber* first = nullptr;
    };
    std::map<std::string, Group> groups;
    for (Block* block : world->resident)
        for (Fiber& fiber : block->fibers) {
            if (fiber.is_done) continue;
            const Waiting& waiting = fiber.waiting;
            std::string why = waiting.what;
            if (!strcmp(waiting.what, "an mbarrier")) {
                MBarrier& barrier = block->mbarriers[waiting.number];
                why += " at +" + number(waiting.number - SHARED_BASE) + ", which is in phase " + number(barrier.phase) +
                       " and lacks " + number(barrier.pending) + " of " + number(barrier.arrivals) + " arrivals and " +
                       number(barrier.bytes) + " bytes";
            } else if (!strcmp(waiting.what, "barrier")) {
                NumberedBarrier& barrier = block->numbered[waiting.number];
                why += " " + number(waiting.number) + ", at which " + number(barrier.arrived) + " of " +
                       number(waiting.count) + " threads have arrived";
            } else if (!strcmp(waiting.what, "registers")) {
                why += ": " + number(waiting.number) + " for each thread, while " + number(block->registers_left) +
                       " are left";
            }
            Group& group = groups["of block " + number(block->index) + " wait for " + why + ", " + place(waiting.pc)];
            if (group.count++ == 0) group.first = &fiber;
        }
    std::string text = "nobody can go on";
    size_t told = 0;
    for (auto& [why, group] : groups) {
        if (++told > 12) break;
        text += "\n    " + number(group.count) + (group.count == 1 ? " thread (" : " threads (from ") +
                number(group.first->thread) + ") " + why;
    }
    report("deadlock", text);
}

static bool is_late() {
    if (world->options.seconds <= 0) return false;
    std::chrono::duration<double> taken = std::chrono::steady_clock::now() - world->begun;
    return taken.count() > world->options.seconds;
}

// ---- crashes ----
static struct sigaction before_segv, before_bus, before_fpe;

static void on_signal(int signal, siginfo_t* info, void* context) {
    if (!world || !world->running) {
        const struct sigaction& before = signal == SIGSEGV ? before_segv : signal == SIGBUS ? before_bus : before_fpe;
        sigaction(signal, &before, nullptr);
        return;
    }
    const void* pc = nullptr;
#if defined(__x86_64__)
    pc = reinterpret_cast<const char*>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]) + 1;
#elif defined(__aarch64__)
    pc = reinterpret_cast<const char*>(static_cast<ucontext_t*>(context)->uc_mcontext.pc) + 1;
#endif
    char text[64];
    const char* what = signal == SIGFPE ? "a division by zero" : "a read or write of memory that nobody has";
    snprintf(text, sizeof text, ", address %p, ", info->si_addr);
    const char* whose = world->current ? "" : " (in the simulator itself)";
    report("crash", std::string(what) + whose + (signal == SIGFPE ? " " : text) + place(pc));
    siglongjmp(world->crash, 1);
}

static void catch_signals() {
    static std::once_flag once;
    std::call_once(once, [] {
        struct sigaction action = {};
        action.sa_sigaction = on_signal;
        action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, &action, &before_segv);
        sigaction(SIGBUS, &action, &before_bus);
        sigaction(SIGFPE, &action, &before_fpe);
    });
    static thread_local std::unique_ptr<char[]> stack;
    if (!stack) {
        stack.reset(new char[64 << 10]);
        stack_t alternative = {};
        alternative.ss_sp = stack.get();
        alternative.ss_size = 64 << 10;
        sigaltstack(&alternative, nullptr);
    }
}

static void run_loop() {
    for (unsigned long steps = 0; !world->launches.empty(); ++steps) {
        if (steps % 4096 == 0 && is_late())
            return report("time limit", "the launch of " + world->launches.front()->name + " takes longer than " +
                                            number(static_cast<long>(world->options.seconds)) + " s");
        start_blocks();
        std::vector<AsyncPointer>& in_flight = world->in_flight;
        Block* block = choose_block();
        if (!in_flight.empty()) {
            size_t chosen = world->random_word() % in_flight.size();
            if (!block || (in_flight[chosen]->when == When::RANDOM && world->chance(8))) {
                AsyncPointer async = in_flight[chosen];
                in_flight[chosen] = in_flight.back();
                in_flight.pop_back();
                world->current = nullptr;
                async->run();
                continue;
            }
        }
        if (!block) return tell_deadlock();
        Fiber* fiber = pick(block);
        world->current = fiber;
        world->position = {{fiber->thread, 0, 0}, {block->index, 0, 0}, {block->launch->grid, 1, 1}};
        if (fiber->must_resolve) {
            resolve(fiber);
            fiber->must_resolve = false;
        }
        put_in_place(block);
        ++world->switches;
        sim_switch(&world->scheduler_sp, fiber->sp);
        if (fiber->is_done && --block->live == 0) end_block(block);
    }
}

// One after the other, as a stream does. True if nothing was found.
bool run_launches(std::vector<std::unique_ptr<Launch>>& launches) {
    World& w = this_world();
    catch_signals();
    w.schedule = Schedule(w.options.seed);
    w.random = (w.options.seed + 0x51ed27 * ++w.runs) * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < 4; ++i) w.random_word();
    w.failed = false;
    w.begun = std::chrono::steady_clock::now();
    const Launch* before = nullptr;
    for (auto& launch : launches) {
        launch->number = launches_so_far++;
        // A dependent launch knows of the one before when it has waited for it.
        launch->known = launch->is_dependent && before ? before->known : launch->number - 1;
        launch->image = image_of(launch->module);
        launch->argument_bytes.resize(launch->argument_bytes.size() + 128);
        char* first = launch->argument_bytes.data();
        launch->argument = first + (-reinterpret_cast<uintptr_t>(first) & 63);
        memmove(launch->argument, first, launch->argument_bytes.size() - 128);
        w.launches.push_back(launch.get());
        before = launch.get();
    }
    w.running = true;
    if (sigsetjmp(w.crash, 1) == 0) run_loop();
    w.running = false;
    w.current = nullptr;
    // Whatever a launch that failed left.
    for (Block* block : w.resident)
        for (Fiber& fiber : block->fibers) w.stacks.push_back(fiber.stack);
    w.resident.clear(), w.launches.clear(), w.in_flight.clear(), w.in_place.clear();
    w.turn = nullptr;
    w.atomic_places.clear();
    return !w.failed;
}

// ---- clocks ----
Snapshot snapshot(Fiber* fiber) {
    if (!fiber->snapshot) fiber->snapshot = std::make_shared<Clock>(fiber->clock);
    return fiber->snapshot;
}
void changed(Fiber* fiber) { fiber->snapshot = nullptr; }
void release(Clock& to, Fiber* fiber) {
    if (!world->options.races) return;
    to.join(fiber->clock);
    ++fiber->clock.own.seen[fiber->thread];
    changed(fiber);
}
void acquire(const Clock& from, Fiber* fiber) {
    if (!world->options.races) return;
    fiber->clock.join(from);
    changed(fiber);
}
Actor thread_actor(Fiber* fiber, const void* pc) {
    return {&fiber->clock,
            fiber->block->launch->number,
            fiber->block->number,
            static_cast<uint16_t>(fiber->thread),
            fiber->clock.own.seen[fiber->thread],
            false,
            pc};
}
}  // namespace sim
