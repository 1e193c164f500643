// fiber.cpp owns what a fiber leaves on its stack when another one goes on.
#include "tests/emulated/engine.h"

#if defined(__x86_64__)
#define REGISTERS 6
asm(".text\n.globl fiber_switch\n.type fiber_switch, @function\nfiber_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size fiber_switch, .-fiber_switch\n");
#elif defined(__aarch64__)
#define REGISTERS 20
asm(".text\n.globl fiber_switch\n.type fiber_switch, %function\nfiber_switch:\n"
    "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
    "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n"
    ".size fiber_switch, .-fiber_switch\n");
#endif

void *emulated::fiber_stack(uintptr_t top, void (*entry)())
{
    void **sp = (void **)top;

#if defined(__x86_64__)
    *--sp = NULL;
    *--sp = (void *)entry;
    sp -= REGISTERS;
#else
    sp -= REGISTERS;
    sp[11] = (void *)entry;
#endif
    return sp;
}
