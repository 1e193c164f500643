// engine - blocks of kernels under way on the emulated device: engine.cpp. All of it belongs to the
// device's thread.
#ifndef TANDEM_TESTS_EMULATED_ENGINE_H
#define TANDEM_TESTS_EMULATED_ENGINE_H

#include <string>

#include "tests/emulated/device.h"
#include "tests/emulated/emulated.h"

// fiber_switch - leaves its registers on the stack, *from; `to` goes on with those that it left.
extern "C" void fiber_switch(void **from, void *to);

namespace emulated
{
// fiber_stack - a stack as one that is to begin with `entry` has left it
void *fiber_stack(uintptr_t top, void (*entry)());

constexpr int LINE = 128;  // bytes in the cache
constexpr int CLUSTER = 8; // blocks that any device lets be one
constexpr int SMS = 4, SM_THREADS = 1536, BLOCK_SHARED = 99 << 10, SM_SHARED = 100 << 10;

// What is known of a kernel: its name, and where the variables lie that it may share in a block.
struct kernel {
    std::string name;
    size_t begin, end; // of the thread's variables, whole lines
    int shared;        // bytes of its own
    int dynamic_max;
    int cluster_max;
    long launches;
};

kernel *kernel_of(const void *entry); // any thread

// A launch under way.
struct grid {
    const kernel *k;
    const call *what;
    dim3 blocks, threads;
    size_t shared;
    unsigned cluster;
    unsigned begun, ended, let; // blocks; let: those that let the next kernel in
    bool settled;               // what is in front has ended

    unsigned all() const
    {
        return blocks.x * blocks.y * blocks.z;
    }
};

// How the device runs what may run in any order. Even: a cluster of blocks after the other, one
// kernel after the other; odd: as much as fits at once, the next kernel as early as it may begin,
// sections beside the others as late. 0 and 1: threads and blocks in order and in the opposite one;
// from 2 on in an order drawn from it.
static inline unsigned order()
{
    return emulated_order;
}

bool engine_admit(grid *g); // the next cluster of its blocks; false: no room
bool engine_pass();         // every block until it waits; false: nobody has come further
bool engine_empty();
} // namespace emulated

#endif
