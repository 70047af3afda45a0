// Shared memory by 32-bit address, global memory in a window of its own, and every access that the compiler shows.
#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include "world.h"

namespace sim {
// ---- shared memory ----
// As the processor-specific ABI of thread-local storage has it: where a variable of a library is for this thread.
struct TlsIndex {
    size_t module, offset;
};
extern "C" void* __tls_get_addr(TlsIndex*);

// All thread-local memory of the library that the kernel is in.
Image image_of(Module* module) {
    auto memory = reinterpret_cast<char* (*)()>(dlsym(module->library, "sim_shared_memory"));
    char* dynamic = memory();
    struct Search {
        size_t module, bytes;
    } search{};
    // Not by `dlpi_tls_data`: that is null now and then while another thread opens a library.
    if (dlinfo(module->library, RTLD_DI_TLS_MODID, &search.module) != 0) search.module = 0;
    dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* data) {
            Search& search = *static_cast<Search*>(data);
            if (info->dlpi_tls_modid != search.module) return 0;
            for (int i = 0; i < info->dlpi_phnum; ++i)
                if (info->dlpi_phdr[i].p_type == PT_TLS) search.bytes = info->dlpi_phdr[i].p_memsz;
            return 1;
        },
        &search);
    if (search.module == 0 || search.bytes == 0) {
        fprintf(stderr, "eightfold: %s has no thread-local memory\n", module->path.c_str());
        abort();
    }
    TlsIndex first{search.module, 0};
    char* start = static_cast<char*>(__tls_get_addr(&first));
    return {start, search.bytes, static_cast<size_t>(dynamic - start)};
}

unsigned address_of(const void* pointer) {
    const Image& image = world->current->block->launch->image;
    return static_cast<unsigned>(static_cast<const char*>(pointer) - image.start) + SHARED_BASE;
}

constexpr unsigned MOST_DYNAMIC = 227 << 10;

char* shared_bytes(Block* block, unsigned address, unsigned bytes, const char* what, const void* pc) {
    const Launch& launch = *block->launch;
    size_t offset = address - SHARED_BASE, dynamic = launch.image.dynamic_at;
    bool is_inside = address >= SHARED_BASE && offset + bytes <= launch.image.bytes;
    if (is_inside && offset + bytes > dynamic && offset < dynamic + MOST_DYNAMIC)
        is_inside = offset >= dynamic && offset + bytes <= dynamic + launch.dynamic_bytes;
    if (!is_inside)
        fatal("bounds", std::string(what) + " of " + number(bytes) + " bytes at +" +
                            number(static_cast<long>(offset) - static_cast<long>(dynamic)) + " of " +
                            number(launch.dynamic_bytes) + " bytes of shared memory, " + place(pc));
    return (block->is_in_place ? launch.image.start : block->image.data()) + offset;
}

static void tell_race(const char* where, Access access, const Actor& actor, const Race& race) {
    Epoch now;
    now.block = actor.block, now.actor = actor.number, now.is_async = actor.is_async;
    auto verb = [](const Epoch& epoch) {
        return epoch.is_atomic ? " updates " : epoch.is_write ? " writes " : " reads ";
    };
    now.is_write = access != Access::READ, now.is_atomic = access == Access::ATOMIC;
    std::string between = race.before.launch != actor.launch ? "from another launch, "
                          : race.before.block != actor.block ? "from another block, "
                                                             : "";
    std::string order = race.lacks_fence ? " without fence.proxy.async before " : " and nothing orders it before ";
    report("race", std::string(where) + " memory: " + between + name_of(race.before) + verb(race.before) +
                       place(race.before.pc) + order + name_of(now) + verb(now) + place(actor.pc));
}

static uint8_t mask_of(size_t cell, size_t first, size_t last) {
    size_t from = cell * 4 < first ? first - cell * 4 : 0, to = std::min<size_t>(last - cell * 4, 4);
    return static_cast<uint8_t>((1 << to) - (1 << from));
}

void touch_shared(Block* block, unsigned address, unsigned bytes, Access access, const Actor& actor, Written must_be) {
    if (!world->options.races) return;
    size_t first = address - SHARED_BASE, last = first + bytes;
    bool all = true, any = false;
    for (size_t at = first / 4; at * 4 < last; ++at) {
        uint8_t mask = mask_of(at, first, last);
        Cell& cell = block->cells[at];
        all &= (cell.written & mask) == mask;
        any |= (cell.written & mask) != 0;
        Race race;
        if (touch(cell, mask, access, actor, race)) tell_race("shared", access, actor, race);
    }
    if (access != Access::WRITE && (must_be == Written::ALL ? !all : must_be == Written::SOME && !any))
        report("unwritten", "shared memory that nobody wrote is read at +" +
                                number(static_cast<long>(first) - static_cast<long>(block->launch->image.dynamic_at)) +
                                ", " + place(actor.pc));
}

static void check_alignment(uintptr_t address, unsigned bytes, const char* what, const void* pc) {
    if (address % bytes)
        fatal("bounds", std::string("a misaligned ") + what + " of " + number(bytes) + " bytes, " + place(pc));
}

static void access_shared(unsigned address, unsigned bytes, Access access, Written must_be, const void* pc) {
    ++world->work.shared;
    Fiber* fiber = world->current;
    shared_bytes(fiber->block, address, bytes, access == Access::READ ? "a read" : "a write", pc);
    touch_shared(fiber->block, address, bytes, access, thread_actor(fiber, pc), must_be);
}

void load_shared(unsigned address, void* to, unsigned bytes) {
    check_alignment(address, bytes, "load", CALLER);
    access_shared(address, bytes, Access::READ, Written::ALL, CALLER);
    memcpy(to, shared_bytes(world->current->block, address, bytes, "a read", CALLER), bytes);
}
void store_shared(unsigned address, const void* from, unsigned bytes) {
    check_alignment(address, bytes, "store", CALLER);
    access_shared(address, bytes, Access::WRITE, Written::ALL, CALLER);
    memcpy(shared_bytes(world->current->block, address, bytes, "a write", CALLER), from, bytes);
    maybe_yield(16);
}

// ---- global memory ----
constexpr size_t WINDOW_BYTES = size_t(1) << 38, PAGE = 4096, TOTAL_BYTES = size_t(8) << 30;

struct Allocation {
    char* start;
    size_t bytes;
    uint8_t* written;                           // a byte for each
    std::map<size_t, std::vector<Cell>> pages;  // of cells, by number; made when a kernel touches them
    std::vector<Cell>* last_page = nullptr;
    size_t last_number = ~size_t(0);
};
static std::mutex memory_lock;
static char* window;
static size_t window_used, bytes_used;
static std::map<char*, std::unique_ptr<Allocation>> allocations;

// The allocation that a page of the window is of, for looking up without the lock.
static std::atomic<Allocation*>* owners;

bool is_global(const void* address) {
    const char* at = static_cast<const char*>(address);
    return window && at >= window && at < window + WINDOW_BYTES;
}

static Allocation* find(const void* address) {
    size_t offset = static_cast<size_t>(static_cast<const char*>(address) - window);
    Allocation* found = owners[offset / PAGE].load(std::memory_order_acquire);
    return found && offset < static_cast<size_t>(found->start - window) + found->bytes ? found : nullptr;
}

static void set_owner(const Allocation& allocation, Allocation* owner) {
    size_t first = static_cast<size_t>(allocation.start - window) / PAGE;
    for (size_t page = first; page * PAGE < static_cast<size_t>(allocation.start - window) + allocation.bytes; ++page)
        owners[page].store(owner, std::memory_order_release);
}

void* allocate(size_t bytes) {
    std::lock_guard<std::mutex> lock(memory_lock);
    if (!window) {
        void* reserved = mmap(nullptr, WINDOW_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (reserved == MAP_FAILED) return nullptr;
        void* table = mmap(nullptr, WINDOW_BYTES / PAGE * sizeof(*owners), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (table == MAP_FAILED) return nullptr;
        owners = static_cast<std::atomic<Allocation*>*>(table);
        window = static_cast<char*>(reserved);
    }
    // A page that nobody may touch lies between any two.
    size_t room = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    if (bytes_used + bytes > TOTAL_BYTES || window_used + room > WINDOW_BYTES) return nullptr;
    char* start = window + window_used;
    if (mprotect(start, room - PAGE, PROT_READ | PROT_WRITE) != 0) return nullptr;
    void* written = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (written == MAP_FAILED) return nullptr;
    window_used += room;
    bytes_used += bytes;
    memset(start, 0xff, bytes);
    auto allocation = std::make_unique<Allocation>();
    allocation->start = start, allocation->bytes = bytes, allocation->written = static_cast<uint8_t*>(written);
    set_owner(*allocation, allocation.get());
    allocations[start] = std::move(allocation);
    return start;
}

bool release_memory(void* address) {
    std::lock_guard<std::mutex> lock(memory_lock);
    auto found = allocations.find(static_cast<char*>(address));
    if (found == allocations.end()) return false;
    Allocation& allocation = *found->second;
    size_t room = (allocation.bytes + PAGE - 1) / PAGE * PAGE;
    munmap(allocation.written, room + PAGE);
    // Never handed out again, so that whoever still uses it is found.
    mmap(allocation.start, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    bytes_used -= allocation.bytes;
    set_owner(allocation, nullptr);
    allocations.erase(found);
    return true;
}

bool allocation_of(const void* address, void** start, size_t* bytes) {
    Allocation* allocation = is_global(address) ? find(address) : nullptr;
    if (!allocation) return false;
    *start = allocation->start, *bytes = allocation->bytes;
    return true;
}

void free_and_total(size_t* free_bytes, size_t* total_bytes) {
    std::lock_guard<std::mutex> lock(memory_lock);
    *free_bytes = TOTAL_BYTES - bytes_used, *total_bytes = TOTAL_BYTES;
}

void check_global(const void* address, size_t bytes, const char* what, const void* pc) {
    const char* at = static_cast<const char*>(address);
    Allocation* allocation = is_global(address) ? find(address) : nullptr;
    if (allocation && at + bytes <= allocation->start + allocation->bytes) return;
    std::string where = "that is no memory of the device";
    if (allocation)
        where = number(at - allocation->start) + " bytes into an allocation of " + number(allocation->bytes);
    else if (is_global(address))
        where = "behind or between allocations, or in one that was freed";
    fatal("bounds", std::string(what) + " of " + number(bytes) + " bytes " + where + ", " + place(pc));
}

void touch_global(const void* address, size_t bytes, Access access, const Actor& actor) {
    Allocation* allocation = find(address);
    size_t first = static_cast<const char*>(address) - allocation->start, last = first + bytes;
    if (access != Access::WRITE && memchr(allocation->written + first, 0, bytes))
        report("unwritten", "global memory that nobody wrote is read " + number(first) +
                                " bytes into an allocation of " + number(allocation->bytes) + ", " + place(actor.pc));
    if (access != Access::READ) memset(allocation->written + first, 1, bytes);
    if (!world->options.races) return;
    for (size_t at = first / 4; at * 4 < last; ++at) {
        size_t page = at / 1024;
        if (allocation->last_number != page) {
            std::vector<Cell>& cells = allocation->pages[page];
            if (cells.empty()) cells.resize(1024);
            allocation->last_page = &cells;
            allocation->last_number = page;
        }
        Race race;
        if (touch((*allocation->last_page)[at % 1024], mask_of(at, first, last), access, actor, race))
            tell_race("global", access, actor, race);
    }
}

// By the host, between launches: what kernels did there before is done.
void write_by_host(const void* address, size_t bytes) {
    Allocation* allocation = find(address);
    memset(allocation->written + (static_cast<const char*>(address) - allocation->start), 1, bytes);
}

static void access_global(const void* address, unsigned bytes, Access access, const void* pc) {
    ++world->work.global;
    check_global(address, bytes, access == Access::READ ? "a read" : "a write", pc);
    Actor actor = thread_actor(world->current, pc);
    if (access == Access::WRITE) {
        auto last = world->atomic_places.find(address);
        actor.is_last_atomic = last != world->atomic_places.end() && last->second.first <= world->current->last_atomic;
    }
    touch_global(address, bytes, access, actor);
}

void load_global(const void* from, void* to, unsigned bytes) {
    check_alignment(reinterpret_cast<uintptr_t>(from), bytes, "load", CALLER);
    access_global(from, bytes, Access::READ, CALLER);
    memcpy(to, from, bytes);
}
void store_global(void* to, const void* from, unsigned bytes) {
    check_alignment(reinterpret_cast<uintptr_t>(to), bytes, "store", CALLER);
    access_global(to, bytes, Access::WRITE, CALLER);
    memcpy(to, from, bytes);
}

// ---- atomics and fences of global memory ----
void fence_memory() {
    if (!world->options.races) return;
    Fiber* fiber = world->current;
    Clock& clock = fiber->clock;
    clock.join_blocks(clock.observed);
    clock.released = joined(clock.released, clock.all());
    ++clock.own.seen[fiber->thread];
    changed(fiber);
}

static bool is_shared(const Launch& launch, const void* pointer) {
    const char* at = static_cast<const char*>(pointer);
    return at >= launch.image.start && at < launch.image.start + launch.image.bytes;
}

unsigned update(unsigned* place, Atomic how, unsigned value) {
    Fiber* fiber = world->current;
    if (is_shared(*fiber->block->launch, place)) {
        unsigned address = address_of(place);
        shared_bytes(fiber->block, address, 4, "an atomic update", CALLER);
        touch_shared(fiber->block, address, 4, Access::ATOMIC, thread_actor(fiber, CALLER), Written::ALL);
    } else {
        check_global(place, 4, "an atomic update", CALLER);
        touch_global(place, 4, Access::ATOMIC, thread_actor(fiber, CALLER));
    }
    auto& [last, told] = world->atomic_places[place];
    last = fiber->last_atomic = ++world->atomics;
    if (world->options.races) {
        fiber->clock.observed = joined(fiber->clock.observed, told);
        told = joined(told, fiber->clock.released);
        ++fiber->clock.own.seen[fiber->thread];
        changed(fiber);
    }
    unsigned before = *place;
    *place = how == Atomic::ADD ? before + value : std::max(before, value);
    maybe_yield(4);
    return before;
}

// ---- every access that the compiler shows: -fsanitize=thread, with these in place of its library ----
static inline void shown(const void* pointer, size_t bytes, Access access, const void* pc, bool is_aligned = false) {
    Fiber* fiber = world ? world->current : nullptr;
    if (!fiber) return;
    if (is_shared(*fiber->block->launch, pointer)) {
        // What the compiler reads as a whole may have gaps.
        access_shared(address_of(pointer), static_cast<unsigned>(bytes), access, Written::SOME, pc);
    } else if (is_global(pointer)) {
        access_global(pointer, static_cast<unsigned>(bytes), access, pc);
    } else {
        return;
    }
    if (is_aligned) check_alignment(reinterpret_cast<uintptr_t>(pointer), static_cast<unsigned>(bytes), "access", pc);
    maybe_yield(32);  // others may come between any two accesses
}
}  // namespace sim

#define HOOK(name, bytes, access, aligned) \
    extern "C" SIMULATED void name(void* p) { sim::shown(p, bytes, sim::Access::access, CALLER, aligned); }
#define HOOKS(bytes)                                                \
    HOOK(__tsan_read##bytes, bytes, READ, true)                     \
    HOOK(__tsan_write##bytes, bytes, WRITE, true)                   \
    HOOK(__tsan_unaligned_read##bytes, bytes, READ, false)          \
    HOOK(__tsan_unaligned_write##bytes, bytes, WRITE, false)        \
    HOOK(__tsan_volatile_read##bytes, bytes, READ, true)            \
    HOOK(__tsan_volatile_write##bytes, bytes, WRITE, true)          \
    HOOK(__tsan_unaligned_volatile_read##bytes, bytes, READ, false) \
    HOOK(__tsan_unaligned_volatile_write##bytes, bytes, WRITE, false)
HOOKS(1) HOOKS(2) HOOKS(4) HOOKS(8) HOOKS(16) extern "C" {
    SIMULATED void __tsan_init() {}
    SIMULATED void __tsan_func_entry(void*) {}
    SIMULATED void __tsan_func_exit() {}
    SIMULATED void __tsan_read_range(void* p, size_t n) { sim::shown(p, n, sim::Access::READ, CALLER); }
    SIMULATED void __tsan_write_range(void* p, size_t n) { sim::shown(p, n, sim::Access::WRITE, CALLER); }
    SIMULATED void* __tsan_memcpy(void* to, const void* from, size_t n) {
        sim::shown(from, n, sim::Access::READ, CALLER);
        sim::shown(to, n, sim::Access::WRITE, CALLER);
        return memcpy(to, from, n);
    }
    SIMULATED void* __tsan_memset(void* to, int value, size_t n) {
        sim::shown(to, n, sim::Access::WRITE, CALLER);
        return memset(to, value, n);
    }
}
