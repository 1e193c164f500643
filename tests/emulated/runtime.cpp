// runtime.cpp owns what the host sees of the emulated device: memory, streams, events and graphs. A thread of its own is the
// device: it takes what was queued when what is in front has ended, or for a kernel that may overlap when that has let it in,
// and in an order that `order` names (engine.h).
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <thread>
#include <time.h>
#include <unistd.h>
#include <vector>

#include "tests/emulated/engine.h"

#define ROOM ((size_t)64 << 30)
#define PAGES ((size_t)1 << 20) // from so many bytes on memory is not filled before it is used
#define IDLE_US 20
#define STUCK_S 60

using emulated::engine_admit;
using emulated::engine_empty;
using emulated::engine_pass;
using emulated::kernel_of;

struct emulated_task;
typedef std::shared_ptr<emulated_task> task_ptr;

struct dependency {
    task_ptr on;
    bool own; // what the same stream had before
};

// A kernel, something for the device's thread to do (act), or a place where others meet.
struct emulated_task {
    std::vector<dependency> after;
    std::unique_ptr<emulated::call> what;
    emulated::grid g;
    std::function<void()> act;
    bool overlap, side, begun, done;
};

struct emulated_graph {
    std::vector<task_ptr> nodes;
    std::vector<emulated_stream *> streams; // that the capture has gone to
};

struct emulated_stream {
    std::vector<dependency> tail; // what comes next stands behind these
    std::vector<emulated_task *> nodes;
    emulated_graph *graph; // being captured
    bool side;             // of a capture that another stream has begun
};

struct emulated_event {
    std::vector<task_ptr> tasks;
    emulated_graph *graph;
};

// Never taken apart: the device's thread outlives main.
struct device {
    std::mutex mutex;
    std::condition_variable queued, done;
    std::deque<task_ptr> pending; // in order; what runs is among them
    std::map<const void *, size_t> memory, host;
    size_t bytes;
    bool started;
};
static device &dev = *new device();
static thread_local cudaError_t last;

extern "C" {
unsigned emulated_order;
struct emulated_limits emulated_limits = { emulated::BLOCK_SHARED, emulated::SM_SHARED,
                                           emulated::CLUSTER };
}

static cudaError_t note(cudaError_t e)
{
    if (e != cudaSuccess)
        last = e;
    return e;
}

// ---- the device's thread -----------------------------------------------------------------------

static bool over(const dependency &d)
{
    return d.on->done;
}

// Behind what has ended, or early: behind what has let it in.
static bool may_begin(const task_ptr &t, bool early)
{
    for (auto &d : t->after) {
        const emulated::grid &g = d.on->g;

        if (!over(d) &&
            !(early && t->overlap && d.own && d.on->what && d.on->begun && g.let == g.all()))
            return false;
    }
    return true;
}

static bool settled(const task_ptr &t)
{
    for (auto &d : t->after)
        if (!over(d))
            return false;
    return true;
}

static void begin(const task_ptr &t)
{
    t->begun = true;
    t->g.settled = settled(t);
}

// The next task to begin, NULL if none may. In odd orders what is beside waits until nothing else is left.
static task_ptr choose(bool early)
{
    task_ptr beside;
    bool others = false;

    for (auto &t : dev.pending) {
        others |= t->begun && !t->side;
        if (t->begun || !may_begin(t, early))
            continue;
        if (!t->side || emulated::order() % 2 == 0)
            return t;
        if (!beside)
            beside = t;
    }
    return others && early ? NULL : beside;
}

// What has ended leaves; what is no kernel is done at once. True if something did.
static bool settle(std::unique_lock<std::mutex> &lock)
{
    bool some = false;

    for (size_t i = 0; i < dev.pending.size();) {
        task_ptr t = dev.pending[i];

        if (t->begun && t->what && !t->g.settled)
            t->g.settled = settled(t);
        if (!t->what && !t->begun && settled(t)) {
            t->begun = true;
            if (t->act) {
                lock.unlock();
                t->act();
                lock.lock();
            }
            t->done = true;
        } else if (t->what && t->begun && t->g.ended == t->g.all() && t->g.settled) {
            t->done = true;
        }
        if (!t->done) {
            i++;
            continue;
        }
        some = true;
        t->after.clear();
        for (i = 0; dev.pending[i] != t; i++)
            ;
        dev.pending.erase(dev.pending.begin() + (long)i);
        dev.done.notify_all();
    }
    return some;
}

static bool admit_some(bool early)
{
    task_ptr t;

    for (auto &p : dev.pending)
        if (p->begun && p->what && engine_admit(&p->g))
            return true;
    t = choose(early);
    if (!t || !t->what)
        return false;
    begin(t);
    return engine_admit(&t->g);
}

// What runs, for the report of a device that stands still.
static void report_still()
{
    for (auto &t : dev.pending)
        if (t->begun && t->what)
            fprintf(stderr, "BROKEN %s: %u of %u blocks begun, %u ended, nobody goes on\n",
                    t->g.k->name.c_str(), t->g.begun, t->g.all(), t->g.ended);
    _Exit(1);
}

static void device_main()
{
    std::unique_lock<std::mutex> lock(dev.mutex);
    bool eager = emulated::order() % 2;
    time_t since = time(NULL);

    for (;;) {
        bool moved;

        while (settle(lock))
            ;
        while (eager && admit_some(true))
            ;
        if (engine_empty() && !admit_some(false)) {
            if (dev.pending.empty())
                dev.queued.wait(lock);
            since = time(NULL);
            continue;
        }
        lock.unlock();
        moved = engine_pass();
        lock.lock();
        if (moved)
            since = time(NULL);
        else if (!settle(lock) && !admit_some(true)) {
            lock.unlock();
            usleep(IDLE_US); // the host, if somebody
            lock.lock();
            if (time(NULL) - since > STUCK_S)
                report_still();
        }
    }
}

// ---- queueing ----------------------------------------------------------------------------------

static emulated_stream *stream_of(cudaStream_t s)
{
    static thread_local emulated_stream own = {};

    return s == cudaStreamPerThread ? &own : s;
}

static void queue_task(emulated_stream *s, const task_ptr &t)
{
    std::lock_guard<std::mutex> lock(dev.mutex);

    for (auto &d : s->tail)
        if (!d.on->done || s->graph)
            t->after.push_back(d);
    t->side = s->side;
    s->tail = { { t, true } };
    s->nodes = { t.get() };
    if (s->graph) {
        s->graph->nodes.push_back(t);
        return;
    }
    dev.pending.push_back(t);
    if (!dev.started)
        std::thread(device_main).detach();
    dev.started = true;
    dev.queued.notify_all();
}

static void queue_act(cudaStream_t s, std::function<void()> act)
{
    task_ptr t = std::make_shared<emulated_task>();

    t->act = std::move(act);
    queue_task(stream_of(s), t);
}

static unsigned cluster_of(const cudaLaunchConfig_t *c)
{
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeClusterDimension)
            return c->attrs[i].val.clusterDim.x;
    return 1;
}

// Several, for tests of those that run beside each other.
cudaError_t emulated::clusters_at_once(int *n, const void *entry, const cudaLaunchConfig_t *c)
{
    *n = (int)cluster_of(c) <= kernel_of(entry)->cluster_max ? 2 : 0;
    return cudaSuccess;
}

cudaError_t emulated::submit(const cudaLaunchConfig_t *c, const void *entry, call *what)
{
    task_ptr t = std::make_shared<emulated_task>();
    kernel *k = kernel_of(entry);
    unsigned cluster = cluster_of(c);

    t->what.reset(what);
    for (unsigned i = 0; i < c->numAttrs; i++)
        if (c->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            t->overlap = c->attrs[i].val.programmaticStreamSerializationAllowed;
    t->g = { k, what, c->gridDim, c->blockDim, c->dynamicSmemBytes, cluster, 0, 0, 0, false };
    if (c->gridDim.x == 0 || c->gridDim.y == 0 || c->gridDim.z == 0 || c->gridDim.y > 65535 ||
        c->gridDim.z > 65535 || c->blockDim.x == 0 || c->blockDim.x > 1024 || c->blockDim.y != 1 ||
        c->blockDim.z != 1 || (int)c->dynamicSmemBytes > k->dynamic_max ||
        (int)c->dynamicSmemBytes + k->shared > emulated_limits.block_shared || cluster == 0 ||
        (int)cluster > k->cluster_max || c->gridDim.x % cluster != 0)
        return note(cudaErrorInvalidConfiguration);
    __atomic_fetch_add(&k->launches, 1, __ATOMIC_RELAXED);
    queue_task(stream_of(c->stream), t);
    return cudaSuccess;
}

static void wait_for(const std::vector<dependency> &tail)
{
    std::unique_lock<std::mutex> lock(dev.mutex);

    dev.done.wait(lock, [&] {
        for (auto &d : tail)
            if (!d.on->done)
                return false;
        return true;
    });
}

extern "C" {

// ---- device --------------------------------------------------------------------------------------

cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return note(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;

    last = cudaSuccess;
    return e;
}

const char *cudaGetErrorString(cudaError_t e)
{
    return e == cudaSuccess                     ? "no error"
           : e == cudaErrorMemoryAllocation     ? "out of memory"
           : e == cudaErrorInvalidConfiguration ? "invalid configuration"
                                                : "error of the emulated device";
}

cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int device)
{
    switch (a) {
    case cudaDevAttrComputeCapabilityMajor:
        *v = 12;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *v = 1;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *v = emulated_limits.block_shared;
        break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *v = emulated_limits.sm_shared;
        break;
    case cudaDevAttrMultiProcessorCount:
        *v = emulated::SMS;
        break;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    std::unique_lock<std::mutex> lock(dev.mutex);

    dev.done.wait(lock, [] { return dev.pending.empty(); });
    return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    *can = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    return note(cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int)
{
    *p = {};
    snprintf(p->name, sizeof(p->name), "emulated");
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    snprintf(id, (size_t)bytes, "0000:00:00.0");
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *entry)
{
    a->sharedSizeBytes = (size_t)kernel_of(entry)->shared;
    a->maxThreadsPerBlock = 1024;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *entry, enum cudaFuncAttribute a, int value)
{
    if (a == cudaFuncAttributeMaxDynamicSharedMemorySize)
        kernel_of(entry)->dynamic_max = value;
    else if (value)
        kernel_of(entry)->cluster_max = emulated_limits.cluster;
    return cudaSuccess;
}

// ---- memory --------------------------------------------------------------------------------------

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    std::lock_guard<std::mutex> lock(dev.mutex);

    *left = ROOM - dev.bytes;
    *all = ROOM;
    return cudaSuccess;
}

static cudaError_t take(std::map<const void *, size_t> &of, void **p, size_t bytes)
{
    std::lock_guard<std::mutex> lock(dev.mutex);

    if (bytes > ROOM - dev.bytes || posix_memalign(p, 256, bytes) != 0)
        return note(cudaErrorMemoryAllocation);
    if (bytes < PAGES)
        memset(*p, 0xff, bytes);
    of[*p] = bytes;
    dev.bytes += bytes;
    return cudaSuccess;
}

static cudaError_t give(std::map<const void *, size_t> &of, void *p)
{
    std::lock_guard<std::mutex> lock(dev.mutex);

    if (p && of.find(p) == of.end())
        return note(cudaErrorInvalidValue);
    dev.bytes -= p ? of[p] : 0;
    of.erase(p);
    free(p);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t bytes)
{
    return take(dev.memory, p, bytes);
}

cudaError_t cudaFree(void *p)
{
    return give(dev.memory, p);
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    return take(dev.host, p, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    return give(dev.host, p);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    std::lock_guard<std::mutex> lock(dev.mutex);
    auto at = dev.host.upper_bound(p);

    a->type = cudaMemoryTypeUnregistered;
    if (at != dev.host.begin() && (--at, (const char *)p < (const char *)at->first + at->second))
        a->type = cudaMemoryTypeHost;
    return cudaSuccess;
}

// Whole pages of zeros are pages that nobody has touched.
static void fill(char *p, int value, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), head = -(uintptr_t)p % page;

    if (value != 0 || bytes < PAGES) {
        memset(p, value, bytes);
        return;
    }
    memset(p, 0, head);
    madvise(p + head, (bytes - head) / page * page, MADV_DONTNEED);
    memset(p + head + (bytes - head) / page * page, 0, (bytes - head) % page);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    queue_act(s, [=] { fill((char *)p, value, bytes); });
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    queue_act(s, [=] { memmove(to, from, bytes); });
    return cudaSuccess;
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *h, void *p)
{
    return note(cudaErrorInvalidDevice);
}

cudaError_t cudaIpcOpenMemHandle(void **p, cudaIpcMemHandle_t h, unsigned flags)
{
    return note(cudaErrorInvalidDevice);
}

cudaError_t cudaIpcCloseMemHandle(void *p)
{
    return note(cudaErrorInvalidDevice);
}

// ---- streams and events --------------------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    *s = new emulated_stream();
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    delete s;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (stream_of(s)->graph)
        return note(cudaErrorStreamCaptureUnsupported);
    wait_for(stream_of(s)->tail);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    std::lock_guard<std::mutex> lock(dev.mutex);

    for (auto &d : stream_of(s)->tail)
        if (!d.on->done)
            return cudaErrorNotReady;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned flags)
{
    emulated_stream *s = stream_of(stream);

    if (e->graph && !s->graph) { // the capture goes to this stream too
        s->graph = e->graph;
        s->side = true;
        s->tail.clear();
        s->nodes.clear();
        s->graph->streams.push_back(s);
    }
    for (auto &t : e->tasks) {
        s->tail.push_back({ t, false });
        s->nodes.push_back(t.get());
    }
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = new emulated_event();
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    e->tasks.clear();
    e->graph = stream_of(s)->graph;
    for (auto &d : stream_of(s)->tail)
        e->tasks.push_back(d.on);
    return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    std::vector<dependency> tail;

    for (auto &t : e->tasks)
        tail.push_back({ t, false });
    wait_for(tail);
    return cudaSuccess;
}

// ---- graphs --------------------------------------------------------------------------------------

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    s->graph = new emulated_graph{ {}, { s } };
    s->side = false;
    s->tail.clear();
    s->nodes.clear();
    return cudaSuccess;
}

// Whether what other streams have got stands in front of what the stream has got last.
static bool joined(const emulated_stream *s)
{
    std::vector<const emulated_task *> left(s->nodes.begin(), s->nodes.end());
    std::set<const emulated_task *> seen;

    while (!left.empty()) {
        const emulated_task *t = left.back();

        left.pop_back();
        if (seen.insert(t).second)
            for (auto &d : t->after)
                left.push_back(d.on.get());
    }
    return seen.size() == s->graph->nodes.size();
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g)
{
    bool whole = joined(s);

    *g = s->graph;
    for (emulated_stream *o : (*g)->streams) {
        o->graph = NULL;
        o->side = false;
        o->tail.clear();
        o->nodes.clear();
    }
    if (whole)
        return cudaSuccess;
    delete *g;
    *g = NULL;
    return note(cudaErrorStreamCaptureUnjoined);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *g,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *n)
{
    *status = s->graph ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    *nodes = s->nodes.data();
    *n = s->graph ? s->nodes.size() : 0;
    return cudaSuccess;
}

cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t *nodes, size_t *n)
{
    *n = g->nodes.size();
    return cudaSuccess;
}

// Nodes anew, with edges among themselves.
static std::vector<task_ptr> copies_of(const emulated_graph *g)
{
    std::map<const emulated_task *, task_ptr> copy;
    std::vector<task_ptr> all;

    for (auto &n : g->nodes) {
        task_ptr t = std::make_shared<emulated_task>();

        t->g = n->g;
        t->act = n->act;
        t->overlap = n->overlap;
        t->side = n->side;
        if (n->what) {
            t->what.reset(n->what->copy());
            t->g.what = t->what.get();
        }
        for (auto &d : n->after)
            t->after.push_back({ copy[d.on.get()], d.own });
        copy[n.get()] = t;
        all.push_back(t);
    }
    return all;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t g, unsigned long long flags)
{
    *exec = new emulated_graph{ copies_of(g), {} };
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t s)
{
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    std::vector<task_ptr> all = copies_of(exec);
    emulated_stream *s = stream_of(stream);
    task_ptr first = std::make_shared<emulated_task>(), end = std::make_shared<emulated_task>();

    if (s->graph)
        return note(cudaErrorStreamCaptureUnsupported);
    queue_task(s, first);
    {
        std::lock_guard<std::mutex> lock(dev.mutex);

        for (auto &t : all) {
            if (t->what)
                __atomic_fetch_add(&((emulated::kernel *)t->g.k)->launches, 1, __ATOMIC_RELAXED);
            if (t->after.empty())
                t->after.push_back({ first, false });
            dev.pending.push_back(t);
        }
    }
    s->tail.clear();
    for (auto &t : all)
        s->tail.push_back({ t, false });
    queue_task(s, end);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    delete g;
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams *p)
{
    node->what->set(p->kernelParams);
    node->g.blocks = p->gridDim;
    node->g.threads = p->blockDim;
    node->g.shared = p->sharedMemBytes;
    return cudaSuccess;
}
}
