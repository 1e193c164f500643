/* Every op of the CUDA backend against the reference: see lab.h.
 *
 *   ops [-q] [-f] [-s] [-m] [-b BYTES] [part]
 *
 * -q leaves out the reference and the runs of fewer rows, -f of those cases too that have no kernel
 * which was not in two before; -s lets no launches overlap; -m: as on a device with little shared
 * memory; -b leaves out cases of more bytes than so many, and of others most runs of fewer rows.
 */
#include "tests/device/lab.h"
#include "tests/device/parts.h"

int ops_main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(struct lab *l);
    } parts[] = { { "window", ops_window },   { "dense", ops_dense }, { "quant", ops_quant },
                  { "hyper", ops_hyper },     { "state", ops_state }, { "attend", ops_attend },
                  { "experts", ops_experts }, { "pick", ops_pick },   { "offer", ops_offer } };
    struct lab l;
    bool known = false;
    int r;

    for (int i = 1; i < argc; i++)
        pretend.little_shared |= strcmp(argv[i], "-m") == 0;
    r = lab_open(&l);
    if (r != 0)
        return r;
    for (; argc > 1 && argv[1][0] == '-'; argc--, argv++) {
        l.quick |= strcmp(argv[1], "-q") == 0;
        l.few |= strcmp(argv[1], "-f") == 0;
        if (l.few)
            kernels_watch();
        l.dev->overlap &= strcmp(argv[1], "-s") != 0;
        if (strcmp(argv[1], "-b") == 0 && argc > 2) {
            l.most = strtoul(argv[2], NULL, 10);
            argc--;
            argv++;
        }
    }
    for (int i = 0; i < COUNT(parts); i++)
        if (argc < 2 || strcmp(argv[1], parts[i].name) == 0) {
            parts[i].run(&l);
            known = true;
        }
    printf("ops: %d failures\n", l.failures);
    r = l.failures != 0;
    lab_close(&l);
    if (known)
        return r;
    fprintf(stderr, "ops: no part is called %s\n", argv[1]);
    return 64;
}
