// symbols.cpp owns what the program's own symbols say of a kernel: its name, and the variables of its file.
#include "tests/emulated/engine.h"

#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <map>
#include <mutex>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace emulated
{
struct symbols {
    struct entry {
        std::string name;
        size_t begin, end;
        int file;
    };
    std::map<size_t, entry> functions;
    std::vector<entry> variables;
    size_t base;
};

static const symbols *symbols_read()
{
    symbols *s = new symbols;
    int fd = open("/proc/self/exe", O_RDONLY), file = 0;
    struct stat st;
    const char *at;

    if (fd < 0 || fstat(fd, &st) < 0)
        broken("the program cannot read itself");
    at = (const char *)mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    dl_iterate_phdr(
        [](struct dl_phdr_info *i, size_t, void *arg) {
            *(size_t *)arg = i->dlpi_addr;
            return 1; // the program is the first
        },
        &s->base);
    const ElfW(Ehdr) *e = (const ElfW(Ehdr) *)at;
    const ElfW(Shdr) *h = (const ElfW(Shdr) *)(at + e->e_shoff);
    for (int i = 0; i < e->e_shnum; i++)
        for (size_t k = 0; h[i].sh_type == SHT_SYMTAB && k < h[i].sh_size / sizeof(ElfW(Sym));
             k++) {
            const ElfW(Sym) *y = (const ElfW(Sym) *)(at + h[i].sh_offset) + k;
            const char *name = at + h[h[i].sh_link].sh_offset + y->st_name;
            int type = ELF64_ST_TYPE(y->st_info);

            file += type == STT_FILE;
            if (type == STT_FUNC)
                s->functions[y->st_value] = { name, y->st_value, y->st_value + y->st_size, file };
            else if (type == STT_TLS && ELF64_ST_BIND(y->st_info) == STB_LOCAL)
                s->variables.push_back({ name, y->st_value, y->st_value + y->st_size, file });
        }
    munmap((void *)at, (size_t)st.st_size);
    return s;
}

// A block may share the variables of all functions of its kernel's file.
kernel *kernel_of(const void *entry)
{
    static std::mutex mutex;
    static const symbols *s;
    static std::map<const void *, kernel *> known;
    std::lock_guard<std::mutex> lock(mutex);
    kernel *&k = known[entry];

    if (k)
        return k;
    if (!s)
        s = symbols_read();
    auto f = s->functions.find((size_t)entry - s->base);
    if (f == s->functions.end())
        broken("a kernel without a symbol: the program was stripped");
    const std::string &name = f->second.name;
    std::string own = "_Z" + name + "E";
    char *plain = abi::__cxa_demangle(name.c_str(), NULL, NULL, NULL);
    k = new kernel{ plain ? plain : name, SIZE_MAX, 0, 0, 48 << 10, CLUSTER, 0 };
    free(plain);
    for (auto &v : s->variables)
        if (v.file == f->second.file) {
            k->begin = v.begin < k->begin ? v.begin : k->begin;
            k->end = v.end > k->end ? v.end : k->end;
            if (v.name.compare(0, own.size(), own) == 0)
                k->shared += (int)(v.end - v.begin);
        }
    if (k->end == 0)
        k->begin = 0;
    k->begin = k->begin / LINE * LINE;
    k->end = (k->end + LINE - 1) / LINE * LINE;
    return k;
}
} // namespace emulated
