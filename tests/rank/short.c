/* short.c - tandem, with memory that is short once. Not a test itself.
 *
 *   tandem_short N COMMAND ...   the Nth time that a file of this program asks for memory it gets
 *                                none; 0: it always does, and the last line of stderr says how
 *                                many times that was
 *
 * The linker hands those calls to the functions here first (--wrap). What libraries ask for
 * themselves is not counted.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int __real_main(int argc, char **argv);
int __wrap_main(int argc, char **argv);
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t bytes);
void *__wrap_calloc(size_t n, size_t bytes);
void *__real_realloc(void *p, size_t bytes);
void *__wrap_realloc(void *p, size_t bytes);
void *__real_aligned_alloc(size_t align, size_t bytes);
void *__wrap_aligned_alloc(size_t align, size_t bytes);
char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s);

static long fails;
static atomic_long asked;

static bool is_short(void)
{
    if (atomic_fetch_add(&asked, 1) + 1 != fails)
        return false;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t bytes)
{
    return is_short() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return is_short() ? NULL : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    return is_short() ? NULL : __real_realloc(p, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    return is_short() ? NULL : __real_aligned_alloc(align, bytes);
}

char *__wrap_strdup(const char *s)
{
    return is_short() ? NULL : __real_strdup(s);
}

static void say(void)
{
    dprintf(STDERR_FILENO, "%ld\n", atomic_load(&asked));
}

int __wrap_main(int argc, char **argv)
{
    if (argc < 2)
        return 64;
    fails = atol(argv[1]);
    if (fails == 0)
        atexit(say);
    argv[1] = argv[0];
    return __real_main(argc - 1, argv + 1);
}
