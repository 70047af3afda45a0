// The interface of the CUDA driver, as far as the library calls it, and what the lab asks on top of that.
//
// Work waits in its stream until somebody waits for it. A launch in which something was found to be wrong fails with
// CUDA_ERROR_UNKNOWN, and `sim_findings` says what.
#include <dlfcn.h>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include "world.h"

namespace {
using namespace sim;
enum Result {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_IMAGE = 200,
    NOT_FOUND = 500,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    UNKNOWN = 999
};

struct Function {
    Module* module;
    std::string name;
    void (*entry)(void*);
    size_t argument_bytes, static_bytes;
};

struct Work {
    std::unique_ptr<Launch> launch;  // or
    std::function<void()> call;

    Work copy() const {
        Work other;
        other.call = call;
        if (launch) {
            other.launch = std::make_unique<Launch>();
            Launch& to = *other.launch;
            to.entry = launch->entry, to.name = launch->name, to.module = launch->module, to.grid = launch->grid;
            to.threads = launch->threads, to.dynamic_bytes = launch->dynamic_bytes, to.cluster = launch->cluster;
            to.argument_bytes = launch->argument_bytes, to.is_dependent = launch->is_dependent;
        }
        return other;
    }
};
struct Graph {
    std::vector<Work> work;
};
// Threads that share a stream put their work in any order between each other, so that each may do its own.
struct Stream {
    std::map<std::thread::id, std::vector<Work>> work;
    std::unique_ptr<Graph> captured;
    bool is_capture_broken = false;  // by something that only launches may stand between
};
struct Event {
    std::chrono::steady_clock::time_point when;
};

std::mutex streams_lock;
std::set<Stream*> streams;
unsigned multiprocessors = 4;

int run(std::vector<std::unique_ptr<Launch>>& launches) {
    if (launches.empty()) return SUCCESS;
    bool is_right = run_launches(launches);
    launches.clear();
    return is_right ? SUCCESS : UNKNOWN;
}

int flush(Stream* stream) {
    if (stream->captured) return stream->is_capture_broken = true, CAPTURE_UNSUPPORTED;
    std::vector<Work> work;
    {
        std::lock_guard<std::mutex> lock(streams_lock);
        work.swap(stream->work[std::this_thread::get_id()]);
    }
    std::vector<std::unique_ptr<Launch>> launches;
    for (Work& next : work) {
        if (next.launch) {
            if (launches.empty()) next.launch->is_dependent = false;
            launches.push_back(std::move(next.launch));
            continue;
        }
        if (int failure = run(launches)) return failure;
        next.call();
    }
    return run(launches);
}

int flush_all() {
    std::vector<Stream*> mine;
    {
        std::lock_guard<std::mutex> lock(streams_lock);
        for (Stream* stream : streams)
            if (!stream->work[std::this_thread::get_id()].empty()) mine.push_back(stream);
    }
    int result = SUCCESS;
    for (Stream* stream : mine)
        if (int failure = flush(stream)) result = failure;
    return result;
}

void add(Stream* stream, Work work) {
    if (stream->captured) {
        stream->captured->work.push_back(std::move(work));
        return;
    }
    std::lock_guard<std::mutex> lock(streams_lock);
    stream->work[std::this_thread::get_id()].push_back(std::move(work));
}
void add(Stream* stream, std::function<void()> call) {
    Work work;
    work.call = std::move(call);
    add(stream, std::move(work));
}

bool is_inside(const void* address, size_t bytes) {
    void* start;
    size_t size;
    return allocation_of(address, &start, &size) &&
           static_cast<const char*>(address) + bytes <= static_cast<char*>(start) + size;
}
}  // namespace

#define DRIVER extern "C" SIMULATED int

// ---- for the lab ----
extern "C" SIMULATED void sim_begin(unsigned long long seed, int races, double seconds) {
    World& world = this_world();
    world.options = {seed, races != 0, seconds};
    world.findings.clear();
    world.found.clear();
    world.runs = 0;
    world.work = {};
}
extern "C" SIMULATED void sim_work(Counts* work) { *work = this_world().work; }
extern "C" SIMULATED size_t sim_findings(char* to, size_t room) {
    std::string text;
    for (const std::string& finding : this_world().findings) text += finding + "\n\x1e";
    if (to && room > text.size()) memcpy(to, text.c_str(), text.size() + 1);
    return text.size();
}
extern "C" SIMULATED unsigned long long sim_switches() { return this_world().switches; }
extern "C" SIMULATED void sim_set_multiprocessors(unsigned count) { multiprocessors = count; }

// ---- devices ----
DRIVER cuInit(unsigned) { return SUCCESS; }
DRIVER cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
DRIVER cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
DRIVER cuDeviceGet(int* device, int ordinal) { return *device = ordinal, ordinal == 0 ? SUCCESS : INVALID_VALUE; }
DRIVER cuDeviceGetName(char* name, int room, int) { return snprintf(name, room, "simulated Hopper"), SUCCESS; }
DRIVER cuDeviceGetPCIBusId(char* text, int room, int) { return snprintf(text, room, "simulated"), SUCCESS; }
DRIVER cuDeviceTotalMem_v2(size_t* bytes, int) {
    size_t free_bytes;
    return free_and_total(&free_bytes, bytes), SUCCESS;
}
DRIVER cuDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 16:
            *value = static_cast<int>(multiprocessors);
            break;
        case 38:
            *value = 50 << 20;
            break;  // L2
        case 75:
            *value = 9;
            break;  // compute capability
        case 97:
            *value = 227 << 10;
            break;  // most shared memory of a block
        default:
            *value = 0;
    }
    return SUCCESS;
}
static char the_context;
DRIVER cuDevicePrimaryCtxRetain(void** context, int) { return *context = &the_context, SUCCESS; }
DRIVER cuCtxGetCurrent(void** context) { return *context = &the_context, SUCCESS; }
DRIVER cuCtxSetCurrent(void*) { return SUCCESS; }
DRIVER cuCtxSynchronize() { return flush_all(); }

// ---- memory ----
DRIVER cuMemAlloc_v2(void** address, size_t bytes) {
    if (bytes == 0) return INVALID_VALUE;
    *address = allocate(bytes);
    return *address ? SUCCESS : OUT_OF_MEMORY;
}
DRIVER cuMemFree_v2(void* address) {
    int result = flush_all();
    return release_memory(address) ? result : INVALID_VALUE;
}
DRIVER cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
    return free_and_total(free_bytes, total_bytes), SUCCESS;
}
DRIVER cuMemcpyHtoDAsync_v2(void* to, const void* from, size_t bytes, Stream* stream) {
    if (!is_inside(to, bytes)) return INVALID_VALUE;
    std::string data(static_cast<const char*>(from), bytes);
    add(stream, [=] {
        write_by_host(to, bytes);
        memcpy(to, data.data(), bytes);
    });
    return SUCCESS;
}
DRIVER cuMemcpyDtoHAsync_v2(void* to, const void* from, size_t bytes, Stream* stream) {
    if (!is_inside(from, bytes)) return INVALID_VALUE;
    add(stream, [=] { memcpy(to, from, bytes); });
    return flush(stream);
}
DRIVER cuMemcpyDtoDAsync_v2(void* to, const void* from, size_t bytes, Stream* stream) {
    if (!is_inside(to, bytes) || !is_inside(from, bytes)) return INVALID_VALUE;
    add(stream, [=] {
        write_by_host(to, bytes);
        memmove(to, from, bytes);
    });
    return SUCCESS;
}
DRIVER cuMemsetD8Async(void* to, unsigned char value, size_t bytes, Stream* stream) {
    if (!is_inside(to, bytes)) return INVALID_VALUE;
    add(stream, [=] {
        write_by_host(to, bytes);
        memset(to, value, bytes);
    });
    return SUCCESS;
}
DRIVER cuPointerGetAttribute(void* data, int attribute, const void* address) {
    void* start;
    size_t bytes;
    if (!allocation_of(address, &start, &bytes)) return INVALID_VALUE;
    switch (attribute) {
        case 2:
            *static_cast<unsigned*>(data) = 2;
            break;  // of the device
        case 9:
            *static_cast<int*>(data) = 0;
            break;  // which one
        case 11:
            *static_cast<void**>(data) = start;
            break;
        case 12:
            *static_cast<size_t*>(data) = bytes;
            break;
        default:
            return INVALID_VALUE;
    }
    return SUCCESS;
}

// ---- modules and launches ----
DRIVER cuModuleLoadData(Module** module, const void* image) {
    auto loaded = std::make_unique<Module>();
    loaded->path = static_cast<const char*>(image);
    loaded->library = dlopen(loaded->path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!loaded->library) {
        fprintf(stderr, "eightfold: %s\n", dlerror());
        return INVALID_IMAGE;
    }
    *module = loaded.release();
    return SUCCESS;
}
DRIVER cuModuleUnload(Module* module) {
    int result = flush_all();
    // The library stays: findings may name places in it, and other threads have memory of it.
    delete module;
    return result;
}
DRIVER cuModuleGetFunction(Function** function, Module* module, const char* name) {
    auto find = [&](const char* prefix) { return dlsym(module->library, (std::string(prefix) + name).c_str()); };
    void *call = find("sim_call_"), *bytes = find("sim_argument_bytes_");
    if (!call || !bytes) return NOT_FOUND;
    Image image = image_of(module);
    *function = new Function{module, name, reinterpret_cast<void (*)(void*)>(call),
                             reinterpret_cast<size_t (*)()>(bytes)(), image.bytes - (227 << 10)};
    return SUCCESS;
}
DRIVER cuFuncSetAttribute(Function*, int, int) { return SUCCESS; }
DRIVER cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Function* function, int threads, size_t dynamic_bytes) {
    // One, so that blocks that stay take several units of work even where there are few.
    *blocks = threads <= 1024 && dynamic_bytes + function->static_bytes <= 227u << 10;
    return SUCCESS;
}

struct Attribute {
    int id;
    char pad[4];
    union {
        char bytes[64];
        struct {
            unsigned x, y, z;
        } cluster;
        int overlaps;
    };
};
struct Config {
    unsigned grid[3], block[3], shared_bytes;
    Stream* stream;
    Attribute* attributes;
    unsigned attribute_count;
};
DRIVER cuOccupancyMaxActiveClusters(int* clusters, Function*, const Config*) {
    return *clusters = static_cast<int>(multiprocessors), SUCCESS;
}
DRIVER cuLaunchKernelEx(const Config* config, Function* function, void** parameters, void**) {
    auto launch = std::make_unique<Launch>();
    launch->entry = function->entry;
    launch->name = function->name;
    launch->module = function->module;
    launch->grid = config->grid[0];
    launch->threads = config->block[0];
    launch->dynamic_bytes = config->shared_bytes;
    for (unsigned i = 0; i < config->attribute_count; ++i) {
        const Attribute& attribute = config->attributes[i];
        if (attribute.id == 4) launch->cluster = attribute.cluster.x;
        if (attribute.id == 6) launch->is_dependent = attribute.overlaps != 0;
    }
    if (launch->grid == 0 || launch->threads == 0 || launch->threads > 1024 || launch->threads % 32 ||
        launch->dynamic_bytes > 227u << 10 || launch->cluster == 0 || launch->cluster > 16 ||
        launch->grid % launch->cluster)
        return INVALID_VALUE;
    const char* argument = static_cast<const char*>(parameters[0]);
    launch->argument_bytes.assign(argument, argument + function->argument_bytes);
    Work work;
    work.launch = std::move(launch);
    add(config->stream, std::move(work));
    return SUCCESS;
}
DRIVER cuTensorMapEncodeTiled(void* to, int type, unsigned rank, void* pointer, const uint64_t* sizes,
                              const uint64_t* strides, const uint32_t* box, const uint32_t*, int, int swizzle, int,
                              int) {
    if (type != 0 || rank != 4 || reinterpret_cast<uintptr_t>(pointer) % 16 || (swizzle != 2 && swizzle != 3))
        return INVALID_VALUE;
    Map map = {};
    map.magic = Map::MAGIC;
    map.pointer = static_cast<const unsigned char*>(pointer);
    map.line = swizzle == 2 ? 64 : 128;
    for (int i = 0; i < 4; ++i) {
        if (sizes[i] == 0 || sizes[i] > UINT32_MAX || box[i] == 0 || box[i] > 256) return INVALID_VALUE;
        map.sizes[i] = static_cast<uint32_t>(sizes[i]);
        map.box[i] = box[i];
    }
    for (int i = 0; i < 3; ++i) {
        if (strides[i] % 16 || strides[i] >= uint64_t(1) << 40) return INVALID_VALUE;
        map.strides[i] = strides[i];
    }
    if (map.box[0] % 16 || map.box[0] > map.line) return INVALID_VALUE;
    memset(to, 0, 128);
    memcpy(to, &map, sizeof map);
    return SUCCESS;
}

DRIVER cuTensorMapReplaceAddress(void* map, void* pointer) {
    Map* known = static_cast<Map*>(map);
    if (known->magic != Map::MAGIC || reinterpret_cast<uintptr_t>(pointer) % 16) return INVALID_VALUE;
    known->pointer = static_cast<const unsigned char*>(pointer);
    return SUCCESS;
}

// ---- streams, graphs, events ----
DRIVER cuStreamCreate(Stream** stream, unsigned) {
    *stream = new Stream;
    std::lock_guard<std::mutex> lock(streams_lock);
    streams.insert(*stream);
    return SUCCESS;
}
DRIVER cuStreamDestroy_v2(Stream* stream) {
    int result = flush(stream);
    std::lock_guard<std::mutex> lock(streams_lock);
    streams.erase(stream);
    delete stream;
    return result;
}
DRIVER cuStreamSynchronize(Stream* stream) { return flush(stream); }
DRIVER cuStreamBeginCapture_v2(Stream* stream, int) {
    stream->captured = std::make_unique<Graph>();
    stream->is_capture_broken = false;
    return SUCCESS;
}
DRIVER cuStreamEndCapture(Stream* stream, Graph** graph) {
    std::unique_ptr<Graph> captured = std::move(stream->captured);
    *graph = nullptr;
    if (stream->is_capture_broken) return CAPTURE_INVALIDATED;
    return *graph = captured.release(), SUCCESS;
}
static int copy_graph(Graph** to, const Graph* from) {
    *to = new Graph;
    for (const Work& work : from->work) (*to)->work.push_back(work.copy());
    return SUCCESS;
}
DRIVER cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    return copy_graph(executable, graph);
}
DRIVER cuGraphLaunch(Graph* graph, Stream* stream) {
    for (const Work& work : graph->work) add(stream, work.copy());
    return SUCCESS;
}
DRIVER cuGraphDestroy(Graph* graph) { return delete graph, SUCCESS; }
DRIVER cuGraphExecDestroy(Graph* graph) { return delete graph, SUCCESS; }
DRIVER cuEventCreate(Event** event, unsigned) { return *event = new Event, SUCCESS; }
DRIVER cuEventDestroy_v2(Event* event) {
    int result = flush_all();
    delete event;
    return result;
}
DRIVER cuEventRecord(Event* event, Stream* stream) {
    add(stream, [=] { event->when = std::chrono::steady_clock::now(); });
    return SUCCESS;
}
DRIVER cuEventSynchronize(Event*) { return flush_all(); }
DRIVER cuEventElapsedTime_v2(float* milliseconds, const Event* from, const Event* to) {
    *milliseconds = std::chrono::duration<float, std::milli>(to->when - from->when).count();
    return SUCCESS;
}
DRIVER cuEventElapsedTime(float* milliseconds, const Event* from, const Event* to) {
    return cuEventElapsedTime_v2(milliseconds, from, to);
}
