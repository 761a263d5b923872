/*
 * A fake of NVIDIA's libnvidia-ml.so.1 that plays the machine described in the file $FAKE_NVML.
 *
 * description.c documents and reads that file. It is read again whenever it has changed, so a
 * machine can break while a process looks at it. Whoever writes it replaces it by rename. A file
 * that cannot be read makes nvmlInit fail with UNKNOWN and one line on stderr; while a process
 * runs, the last good one stays in force. Without $FAKE_NVML nvmlInit answers LIBRARY_NOT_FOUND.
 * core.c begins and ends every call, watching.c answers what is asked again and again (load,
 * health, events), mig.c what is asked of MIG instances, this file the rest.
 *
 * One lock guards everything; it is released while a call hangs or waits. Every entry is
 *
 *     enter(…)    lock, read, play the faults, find the GPU, check the pointer to the answer
 *     …           fill in the answer
 *     leave(code) unlock
 *
 * Handles are never freed. They stay those of a UUID, whatever becomes of the GPU: while the GPU is
 * lost, or no longer described, they answer GPU_IS_LOST; where nvmlInit did not see the GPU,
 * INVALID_ARGUMENT. Structures are declared by the layouts of pynvml's ctypes.
 */
#include "fake.h"

#include <stdio.h>
#include <string.h>

enum { P2P_READ, P2P_WRITE, P2P_NVLINK, P2P_ATOMICS, P2P_PCI, P2P_KINDS };
enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5, P2P_UNKNOWN = 6 };

static Return enter_pair(const char *function, Device a, Device b, struct Gpu *gpus[2],
                         const void *answer) {
    struct Target other = {0};
    Return code = enter_gpu(function, a, &gpus[0], answer);
    if (!code) code = find(b, &other);
    gpus[1] = other.gpu;
    return code ? code : other.instance ? INVALID_ARGUMENT : SUCCESS;
}

/*
 * Links past the GPU's own are INVALID_ARGUMENT, however many NVML could number: a B200 was seen to
 * reject 18 to 35 (NVIDIA/TensorRT-LLM#19210). A GPU without NVLink does not support the question,
 * nor does one in MIG mode.
 */
static Return enter_link(const char *function, Device device, unsigned number, struct Gpu **gpu,
                         struct Link **link, const void *answer) {
    Return code = enter_gpu(function, device, gpu, answer);
    if (code) return code;
    if (number >= MAX_LINKS) return INVALID_ARGUMENT;
    if (!(*gpu)->links || (*gpu)->mig_current) return NOT_SUPPORTED;
    *link = &(*gpu)->link[number];
    return (*link)->present ? SUCCESS : INVALID_ARGUMENT;
}

static Return put(char *to, unsigned room, const char *text) {
    if (strlen(text) >= room) return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

/* --- The system ------------------------------------------------------------------------------- */

API const char *nvmlErrorString(Return code) {
    static const char *const texts[] = {
        [SUCCESS] = "Success",
        [UNINITIALIZED] = "Uninitialized",
        [INVALID_ARGUMENT] = "Invalid Argument",
        [NOT_SUPPORTED] = "Not Supported",
        [NO_PERMISSION] = "Insufficient Permissions",
        [ALREADY_INITIALIZED] = "Already Initialized",
        [NOT_FOUND] = "Not Found",
        [INSUFFICIENT_SIZE] = "Insufficient Size",
        [INSUFFICIENT_POWER] = "Insufficient External Power",
        [DRIVER_NOT_LOADED] = "Driver Not Loaded",
        [TIMEOUT] = "Timeout",
        [IRQ_ISSUE] = "Interrupt Request Issue",
        [LIBRARY_NOT_FOUND] = "NVML Shared Library Not Found",
        [FUNCTION_NOT_FOUND] = "Function Not Found",
        [CORRUPTED_INFOROM] = "Corrupted infoROM",
        [GPU_IS_LOST] = "GPU is lost",
        [RESET_REQUIRED] = "GPU requires restart",
        [OPERATING_SYSTEM] = "The operating system has blocked the request.",
        [VERSION_MISMATCH] = "RM has detected an NVML/RM version mismatch.",
        [IN_USE] = "In use by another client",
        [OUT_OF_MEMORY] = "Insufficient Memory",
        [NO_DATA] = "No data",
        [ARGUMENT_VERSION_MISMATCH] = "Argument version mismatch",
    };
    const char *text = (size_t)code < sizeof texts / sizeof *texts ? texts[code] : NULL;
    return text ? text : "Unknown Error";
}

API Return nvmlSystemGetDriverVersion(char *version, unsigned length) {
    Return code = enter(__func__, version);
    return leave(code ? code : put(version, length, played->driver));
}

API Return nvmlSystemGetNVMLVersion(char *version, unsigned length) {
    Return code = enter(__func__, version);
    return leave(code ? code : put(version, length, played->nvml));
}

static Return cuda(const char *function, int *version) {
    Return code = enter(function, version);
    if (!code) *version = played->cuda;
    return leave(code);
}

/* The first form is what go-nvml calls. NVML documents that the second asks the library itself. */
API Return nvmlSystemGetCudaDriverVersion(int *version) {
    return cuda(__func__, version);
}

API Return nvmlSystemGetCudaDriverVersion_v2(int *version) {
    return cuda(__func__, version);
}

/* --- Finding devices -------------------------------------------------------------------------- */

API Return nvmlDeviceGetCount_v2(unsigned *count) {
    Return code = enter(__func__, count);
    if (!code) {
        *count = 0;
        for (Device each = handles; each; each = each->next) *count += each->present;
    }
    return leave(code);
}

static Return hand_over(Device found, Device *device) {
    struct Target on = {0};
    Return code = find(found, &on);
    if (!code) *device = found;
    return code;
}

API Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    Return code = enter(__func__, device);
    if (code) return leave(code);
    for (Device each = handles; each; each = each->next)
        if (each->present && each->index == index) return leave(hand_over(each, device));
    return leave(INVALID_ARGUMENT);
}

API Return nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    Return code = enter(__func__, uuid ? device : NULL);
    if (code) return leave(code);
    for (Device each = handles; each; each = each->next) {
        if (!each->present) continue;
        if (!strcmp(each->uuid, uuid)) return leave(hand_over(each, device));
        struct Gpu *on = gpu_of(each);
        for (unsigned i = 0; on && on->mig_current && i < MAX_INSTANCES; i++)
            if (on->instances[i].present && !strcmp(on->instances[i].uuid, uuid))
                return leave(hand_over(handle_of(uuid, each), device));
    }
    return leave(NOT_FOUND);
}

static bool same(const struct Address *a, const struct Address *b) {
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device &&
           a->function == b->function;
}

API Return nvmlDeviceGetHandleByPciBusId_v2(const char *bus, Device *device) {
    struct Address wanted;
    Return code = enter(__func__, bus ? device : NULL);
    if (code) return leave(code);
    if (!address_of(bus, &wanted)) return leave(INVALID_ARGUMENT);
    for (Device each = handles; each; each = each->next) {
        struct Gpu *on = each->present ? gpu_of(each) : NULL;
        if (on && same(&on->address, &wanted)) return leave(hand_over(each, device));
    }
    return leave(NOT_FOUND);
}

/* --- What a device is ------------------------------------------------------------------------- */

API Return nvmlDeviceGetUUID(Device device, char *uuid, unsigned length) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, uuid);
    return leave(code ? code : put(uuid, length, device->uuid));
}

API Return nvmlDeviceGetName(Device device, char *name, unsigned length) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, name);
    if (code) return leave(code);
    if (!on.instance) return leave(put(name, length, on.gpu->name));
    char whole_name[2 * TEXT + 8];
    snprintf(whole_name, sizeof whole_name, "%s MIG %s", on.gpu->name, on.instance->profile);
    return leave(put(name, length, whole_name));
}

API Return nvmlDeviceGetIndex(Device device, unsigned *index) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, index);
    if (!code) *index = on.instance ? on.instance->slot : device->index;
    return leave(code);
}

API Return nvmlDeviceGetMinorNumber(Device device, unsigned *minor) {
    struct Gpu *on;
    Return code = enter_gpu(__func__, device, &on, minor);
    if (!code) *minor = (unsigned)on->number;
    return leave(code);
}

struct Memory {
    unsigned long long total, free, used;
};

struct MemoryV2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

/* Version 1 counts the driver's reserved memory as used, version 2 counts it apart. */
static Return memory(const struct Target *on, struct MemoryV2 *answer) {
    if (!(on->gpu->facts & MEMORY)) return NOT_SUPPORTED;
    answer->total = on->gpu->memory;
    answer->reserved = on->gpu->reserved;
    answer->used = on->gpu->used;
    if (on->instance) {
        answer->total = on->instance->memory;
        answer->reserved = answer->used = 0;
        for (size_t i = 0; i < played->processes; i++)
            if (played->process[i].gpu == on->gpu->number &&
                played->process[i].gpu_instance == on->instance->gpu_instance)
                answer->used += played->process[i].bytes;
    }
    answer->free = answer->total - answer->reserved - answer->used;
    return SUCCESS;
}

API Return nvmlDeviceGetMemoryInfo(Device device, struct Memory *answer) {
    struct Target on;
    struct MemoryV2 v2;
    Return code = enter_any(__func__, device, &on, answer);
    if (!code) code = memory(&on, &v2);
    if (!code) *answer = (struct Memory){v2.total, v2.free, v2.total - v2.free};
    return leave(code);
}

API Return nvmlDeviceGetMemoryInfo_v2(Device device, struct MemoryV2 *answer) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, answer);
    if (!code && answer->version != (2U << 24 | sizeof *answer)) code = ARGUMENT_VERSION_MISMATCH;
    return leave(code ? code : memory(&on, answer));
}

struct PciInfo {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char id[32];
};

static void describe(const struct Address *at, struct PciInfo *pci) {
    memset(pci, 0, sizeof *pci);
    pci->domain = at->domain;
    pci->bus = at->bus;
    pci->device = at->device;
    pci->ids = 0x10DE; /* the vendor; which device is not described */
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.%X", at->domain & 0xFFFF,
             at->bus & 0xFF, at->device & 0xFF, at->function & 0xF);
    snprintf(pci->id, sizeof pci->id, "%08X:%02X:%02X.%X", at->domain, at->bus & 0xFF,
             at->device & 0xFF, at->function & 0xF);
}

API Return nvmlDeviceGetPciInfo_v3(Device device, struct PciInfo *pci) {
    struct Gpu *on;
    Return code = enter_gpu(__func__, device, &on, pci);
    if (!code) describe(&on->address, pci);
    return leave(code);
}

API Return nvmlDeviceGetMemoryAffinity(Device device, unsigned size, unsigned long *nodes,
                                       unsigned scope) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, NUMA, &on, size && scope <= 1 ? nodes : NULL);
    if (code) return leave(code);
    const unsigned bits = 8 * sizeof *nodes, node = (unsigned)on->numa;
    memset(nodes, 0, size * sizeof *nodes);
    if (node / bits < size) nodes[node / bits] = 1UL << node % bits;
    return leave(SUCCESS);
}

API Return nvmlDeviceGetNumaNodeId(Device device, int *node) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, OWN_NUMA, &on, node);
    if (!code) *node = on->own_numa;
    return leave(code);
}

API Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    struct Target on;
    Return code = enter_any(__func__, device, &on, minor ? major : NULL);
    if (!code && !(on.gpu->facts & CAPABILITY)) code = NOT_SUPPORTED;
    if (!code) *major = on.gpu->major, *minor = on.gpu->minor;
    return leave(code);
}

API Return nvmlDeviceGetPersistenceMode(Device device, unsigned *mode) {
    struct Gpu *on;
    Return code = enter_gpu(__func__, device, &on, mode);
    if (!code) *mode = 1;
    return leave(code);
}

/* --- How devices are joined ------------------------------------------------------------------- */

API Return nvmlDeviceGetNvLinkState(Device device, unsigned number, unsigned *active) {
    struct Gpu *on;
    struct Link *link;
    Return code = enter_link(__func__, device, number, &on, &link, active);
    if (!code) *active = link->active;
    return leave(code);
}

API Return nvmlDeviceGetNvLinkVersion(Device device, unsigned number, unsigned *version) {
    struct Gpu *on;
    struct Link *link;
    Return code = enter_link(__func__, device, number, &on, &link, version);
    if (!code) *version = link->version;
    return leave(code);
}

/* NVML does not document what it says of the far end of an inactive link: NOT_SUPPORTED here. */
API Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned number,
                                               struct PciInfo *pci) {
    struct Gpu *on;
    struct Link *link;
    Return code = enter_link(__func__, device, number, &on, &link, pci);
    if (code) return leave(code);
    if (!link->active) return leave(NOT_SUPPORTED);
    describe(&link->address, pci);
    if (link->remote == REMOTE_UNKNOWN) pci->ids = 0;
    return leave(SUCCESS);
}

API Return nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned number, unsigned *type) {
    struct Gpu *on;
    struct Link *link;
    Return code = enter_link(__func__, device, number, &on, &link, type);
    if (code) return leave(code);
    if (!link->active) return leave(NOT_SUPPORTED);
    *type = link->remote;
    return leave(SUCCESS);
}

API Return nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, unsigned *level) {
    struct Gpu *on[2];
    Return code = enter_pair(__func__, a, b, on, level);
    if (code) return leave(code);
    int found = on[0] == on[1] ? 0 : played->class[on[0] - played->gpu][on[1] - played->gpu];
    if (found == UNKNOWN_CLASS) return leave(UNKNOWN);
    *level = (unsigned)found;
    return leave(SUCCESS);
}

/* Whether `from` reaches `to` over NVLinks that are up: its own, or both hang on switches. */
static bool linked(const struct Gpu *from, const struct Gpu *to) {
    bool switched[2] = {false, false};
    if (from->mig_current || to->mig_current) return false;
    for (unsigned i = 0; i < MAX_LINKS; i++) {
        const struct Link *link = &from->link[i], *other = &to->link[i];
        if (link->active && link->remote == REMOTE_GPU && same(&link->address, &to->address))
            return true;
        switched[0] |= link->active && link->remote == REMOTE_SWITCH;
        switched[1] |= other->active && other->remote == REMOTE_SWITCH;
    }
    return switched[0] && switched[1];
}

/* Only NVLink is described: over PCIe the answer is P2P_UNKNOWN where NVLink does not help. */
API Return nvmlDeviceGetP2PStatus(Device a, Device b, unsigned kind, unsigned *status) {
    struct Gpu *on[2];
    Return code = enter_pair(__func__, a, b, on, kind < P2P_KINDS ? status : NULL);
    if (code) return leave(code);
    bool reached = on[0] != on[1] && kind != P2P_PCI && linked(on[0], on[1]);
    *status = reached ? P2P_OK : kind == P2P_NVLINK ? P2P_NOT_SUPPORTED : P2P_UNKNOWN;
    return leave(SUCCESS);
}

struct FabricInfo {
    unsigned char cluster[16];
    unsigned status, clique, state;
};

struct FabricInfoV {
    unsigned version;
    struct FabricInfo info;
    unsigned health;
    unsigned char summary; /* version 3 only, which ends in three bytes of padding */
};

static void fabric(const struct Gpu *on, struct FabricInfo *info) {
    memcpy(info->cluster, on->cluster, sizeof info->cluster);
    info->status = SUCCESS;
    info->clique = on->clique;
    info->state = on->fabric_state;
}

API Return nvmlDeviceGetGpuFabricInfo(Device device, struct FabricInfo *info) {
    struct Gpu *on;
    Return code = enter_fact(__func__, device, FABRIC, &on, info);
    if (!code) fabric(on, info);
    return leave(code);
}

API Return nvmlDeviceGetGpuFabricInfoV(Device device, struct FabricInfoV *answer) {
    const unsigned v2 = 2U << 24 | offsetof(struct FabricInfoV, summary);
    const unsigned v3 = 3U << 24 | sizeof *answer;
    struct Gpu *on;
    Return code = enter_fact(__func__, device, FABRIC, &on, answer);
    if (code) return leave(code);
    if (answer->version != v2 && answer->version != v3) return leave(ARGUMENT_VERSION_MISMATCH);
    fabric(on, &answer->info);
    answer->health = 0; /* every aspect "not supported", as on the GB200 of leptonai/gpud#1106 */
    if (answer->version == v3) answer->summary = 0;
    return leave(SUCCESS);
}
