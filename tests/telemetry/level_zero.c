/* Intel's libze_loader.so.1 for machines without its GPUs: as much of Level Zero Sysman as telemetry asks
 * for.
 *
 * A structure that does not say what it is, is refused. Counters only go on when a test lets time pass. */

#include <stddef.h>
#include <stdint.h>

enum result {
    SUCCESS = 0,
    DEVICE_LOST = 0x70000001,
    UNINITIALIZED = 0x78000001,
    INVALID_ARGUMENT = 0x78000004,
    INVALID_SIZE = 0x78000008,
};

enum structure {
    DEVICE_PROPERTIES = 0x1,
    PCI_PROPERTIES = 0x2,
    ENGINE_PROPERTIES = 0x5,
    FREQ_PROPERTIES = 0x9,
    MEM_PROPERTIES = 0xb,
    POWER_PROPERTIES = 0xd,
    TEMP_PROPERTIES = 0x14,
    PROCESS_STATE = 0x16,
    FREQ_STATE = 0x1b,
    MEM_STATE = 0x1e,
    POWER_EXT_PROPERTIES = 0x28,
    DEVICE_EXT_PROPERTIES = 0x2d,
};

enum { GPU = 1, NPU = 5 };
enum { INTEGRATED = 1 };

/* ---- the machine: two cards of two tiles and one without, in the way of a desktop's integrated GPU and an
 * NPU */

struct card {
    uint32_t bus, tiles, kind, flags;
    int lost;
};

static struct card desktop = {0x00, 0, GPU, INTEGRATED, 0};
static struct card second = {0x9a, 2, GPU, 0, 0};
static struct card npu = {0x00, 0, NPU, 0, 0};
static struct card first = {0x3a, 2, GPU, 0, 0};
static struct card third = {0xb4, 0, GPU, 0, 0};
static struct card* const cards[] = {&desktop, &second, &npu, &first, &third};
static struct card* const by_number[] = {&first, &second, &third};

enum { ON_CARD = -1 };

struct part {
    struct card* card;
    int tile;
    uint32_t kind;
    double value; /* %, watts, °C, MHz, or GiB in use of 64 */
};

enum { ALL = 0, COMPUTE_SINGLE = 4, RENDER_SINGLE = 5, COPY_SINGLE = 8 };
static struct part engines[] = {
    {&first, 0, COMPUTE_SINGLE, 5},
    {&first, 0, ALL, 10},
    {&first, 1, ALL, 20},
    {&second, 0, ALL, 30},
    {&second, 1, ALL, 40},
    {&third, ON_CARD, COPY_SINGLE, 90},
    {&third, ON_CARD, COMPUTE_SINGLE, 50},
    {&third, ON_CARD, RENDER_SINGLE, 25},
};

enum { UNKNOWN = 0, CARD = 1, PACKAGE = 2, MEMORY_POWER = 4 };
static struct part power[] = {
    {&first, ON_CARD, CARD, 350},   {&first, 0, PACKAGE, 110},  {&first, 1, PACKAGE, 120},
    {&second, 0, PACKAGE, 130},     {&second, 1, PACKAGE, 140}, {&third, ON_CARD, MEMORY_POWER, 9},
    {&third, ON_CARD, UNKNOWN, 75},
};

enum { GLOBAL_SENSOR = 0, GPU_SENSOR = 1, MEMORY_SENSOR = 2 };
static struct part sensors[] = {
    {&first, 0, MEMORY_SENSOR, 80}, {&first, 0, GPU_SENSOR, 41},  {&first, 1, GPU_SENSOR, 42},
    {&second, 0, GPU_SENSOR, 43},   {&second, 1, GPU_SENSOR, 44}, {&third, ON_CARD, GLOBAL_SENSOR, 45},
};

enum { GPU_CLOCK = 0, MEMORY_CLOCK = 1 };
static struct part clocks[] = {
    {&first, 0, GPU_CLOCK, 1600},        {&first, 1, GPU_CLOCK, 1500},     {&second, 0, GPU_CLOCK, 1400},
    {&second, 1, GPU_CLOCK, 1300},       {&first, 0, MEMORY_CLOCK, 3200},  {&first, 1, MEMORY_CLOCK, 3200},
    {&second, 0, MEMORY_CLOCK, 3200},    {&second, 1, MEMORY_CLOCK, 3200}, {&third, ON_CARD, GPU_CLOCK, 2050},
    {&third, ON_CARD, MEMORY_CLOCK, -1},
};

enum { SYSTEM = 0, DEVICE = 1 };
static struct part memories[] = {
    {&first, 0, DEVICE, 16},       {&first, 1, DEVICE, 32}, {&first, ON_CARD, SYSTEM, 60},
    {&second, 0, DEVICE, 48},      {&second, 1, DEVICE, 8}, {&third, ON_CARD, DEVICE, 16},
    {&third, ON_CARD, SYSTEM, 60},
};

static uint64_t now; /* microseconds */
static int initialised, works = 1, engines_shown = 1;
static uint32_t running[2];

/* ---- what a test does to it */

void fake_reset(void) {
    now = 1000000;
    initialised = 0;
    works = engines_shown = 1;
    first.lost = second.lost = third.lost = 0;
    running[0] = running[1] = 0;
}

void fake_pass(uint64_t microseconds) { now += microseconds; }
void fake_restart_counters(void) { now = 0; }
void fake_unload(void) { works = 0; }
void fake_hide_engines(void) { engines_shown = 0; }
void fake_lose(uint32_t number) { by_number[number]->lost = 1; }
void fake_run(uint32_t one, uint32_t other) {
    running[0] = one;
    running[1] = other;
}

/* ---- devices */

int zesInit(uint32_t flags) {
    initialised = works && flags == 0;
    return initialised ? SUCCESS : UNINITIALIZED;
}

static int list(uint32_t* count, uint32_t there) {
    if (*count == 0 || *count > there) *count = there;
    return SUCCESS;
}

int zesDriverGet(uint32_t* count, void** drivers) {
    list(count, 1);
    if (drivers) drivers[0] = &works;
    return initialised ? SUCCESS : UNINITIALIZED;
}

int zesDeviceGet(void* driver, uint32_t* count, struct card** found) {
    if (driver != &works) return INVALID_ARGUMENT;
    list(count, sizeof cards / sizeof *cards);
    for (uint32_t i = 0; found && i < *count; i++) found[i] = cards[i];
    return SUCCESS;
}

struct core_properties {
    uint32_t stype;
    void* next;
    uint32_t type, vendor, device, flags, subdevice, clock_rate;
    uint64_t largest_allocation;
    uint32_t contexts, priorities, threads, width, units, subslices, slices;
    uint64_t timer_resolution;
    uint32_t timestamp_bits, kernel_timestamp_bits;
    uint8_t uuid[16];
    char name[256];
};

struct device_properties {
    uint32_t stype;
    void* next;
    struct core_properties core;
    uint32_t subdevices;
    char serial[64], board[64], brand[64], model[64], maker[64], driver[64];
};

struct device_ext_properties {
    uint32_t stype;
    void* next;
    uint8_t uuid[16];
    uint32_t type, flags;
};

int zesDeviceGetProperties(struct card* card, struct device_properties* told) {
    struct device_ext_properties* more = told->next;
    if (told->stype != DEVICE_PROPERTIES || more->stype != DEVICE_EXT_PROPERTIES) return INVALID_ARGUMENT;
    told->subdevices = card->tiles;
    more->type = card->kind;
    more->flags = card->flags;
    return SUCCESS;
}

struct pci_properties {
    uint32_t stype;
    void* next;
    uint32_t domain, bus, device, function;
    int32_t generation, width;
    int64_t bandwidth;
    uint8_t bandwidth_counters, packet_counters, replay_counters;
};

int zesDevicePciGetProperties(struct card* card, struct pci_properties* told) {
    if (told->stype != PCI_PROPERTIES) return INVALID_ARGUMENT;
    told->domain = told->device = told->function = 0;
    told->bus = card->bus;
    return SUCCESS;
}

struct process_state {
    uint32_t stype;
    const void* next;
    uint32_t process;
    uint64_t memory, shared;
    uint32_t engines;
};

/* As the driver does, all of them or none. */
int zesDeviceProcessesGetState(struct card* card, uint32_t* count, struct process_state* told) {
    if (card->lost) return DEVICE_LOST;
    if (told && *count < 2) return INVALID_SIZE;
    list(count, 2);
    for (uint32_t i = 0; told && i < *count; i++) {
        if (told[i].stype != PROCESS_STATE) return INVALID_ARGUMENT;
        told[i].process = running[i];
        told[i].memory = (uint64_t)(i + 1) << 30;
        told[i].shared = 7;
    }
    return SUCCESS;
}

/* ---- parts */

static int parts_of(struct card* card, struct part* all, size_t size, uint32_t* count, struct part** found) {
    uint32_t there = 0;
    if (card->lost) return DEVICE_LOST;
    for (struct part* part = all; part < all + size; part++) {
        if (part->card != card) continue;
        if (found && there < *count) found[there] = part;
        there++;
    }
    return list(count, there);
}

#define LISTING(NAME, ALL_PARTS, SHOWN)                                                                   \
    int NAME(struct card* card, uint32_t* count, struct part** found) {                                   \
        return parts_of(card, ALL_PARTS, SHOWN ? sizeof ALL_PARTS / sizeof *ALL_PARTS : 0, count, found); \
    }

LISTING(zesDeviceEnumEngineGroups, engines, engines_shown)
LISTING(zesDeviceEnumPowerDomains, power, 1)
LISTING(zesDeviceEnumTemperatureSensors, sensors, 1)
LISTING(zesDeviceEnumFrequencyDomains, clocks, 1)
LISTING(zesDeviceEnumMemoryModules, memories, 1)

/* Of engines, clocks and sensors: what follows is never set here. */
struct part_properties {
    uint32_t stype;
    void* next;
    uint32_t type;
    uint8_t on_subdevice;
    uint32_t subdevice;
};

static int describe(const struct part* part, uint32_t structure, struct part_properties* told) {
    if (told->stype != structure) return INVALID_ARGUMENT;
    told->type = part->kind;
    told->on_subdevice = part->tile != ON_CARD;
    told->subdevice = part->tile == ON_CARD ? 0 : (uint32_t)part->tile;
    return SUCCESS;
}

int zesEngineGetProperties(struct part* part, struct part_properties* told) {
    return describe(part, ENGINE_PROPERTIES, told);
}

int zesFrequencyGetProperties(struct part* part, struct part_properties* told) {
    return describe(part, FREQ_PROPERTIES, told);
}

int zesTemperatureGetProperties(struct part* part, struct part_properties* told) {
    return describe(part, TEMP_PROPERTIES, told);
}

struct mem_properties {
    uint32_t stype;
    void* next;
    uint32_t type;
    uint8_t on_subdevice;
    uint32_t subdevice, location;
    uint64_t size;
    int32_t width, channels;
};

int zesMemoryGetProperties(struct part* part, struct mem_properties* told) {
    if (told->stype != MEM_PROPERTIES) return INVALID_ARGUMENT;
    told->on_subdevice = part->tile != ON_CARD;
    told->subdevice = part->tile == ON_CARD ? 0 : (uint32_t)part->tile;
    told->location = part->kind;
    return SUCCESS;
}

struct power_properties {
    uint32_t stype;
    void* next;
    uint8_t on_subdevice;
    uint32_t subdevice;
    uint8_t controllable, thresholds;
    int32_t usual, least, most;
};

struct power_ext_properties {
    uint32_t stype;
    void* next;
    uint32_t domain;
    void* limit;
};

int zesPowerGetProperties(struct part* part, struct power_properties* told) {
    struct power_ext_properties* more = told->next;
    if (told->stype != POWER_PROPERTIES || more->stype != POWER_EXT_PROPERTIES) return INVALID_ARGUMENT;
    told->on_subdevice = part->tile != ON_CARD;
    told->subdevice = part->tile == ON_CARD ? 0 : (uint32_t)part->tile;
    more->domain = part->kind;
    return SUCCESS;
}

/* ---- values */

struct counter {
    uint64_t count, time;
};

static int counted(const struct part* part, double share, struct counter* told) {
    if (part->card->lost) return DEVICE_LOST;
    told->count = (uint64_t)((double)now * share);
    told->time = now;
    return SUCCESS;
}

int zesEngineGetActivity(struct part* part, struct counter* told) {
    return counted(part, part->value / 100, told);
}

int zesPowerGetEnergyCounter(struct part* part, struct counter* told) {
    return counted(part, part->value, told);
}

int zesTemperatureGetState(struct part* part, double* celsius) {
    *celsius = part->value;
    return part->card->lost ? DEVICE_LOST : SUCCESS;
}

struct freq_state {
    uint32_t stype;
    const void* next;
    double voltage, request, tdp, efficient, actual;
    uint32_t throttled;
};

int zesFrequencyGetState(struct part* part, struct freq_state* told) {
    if (told->stype != FREQ_STATE) return INVALID_ARGUMENT;
    told->request = told->tdp = told->efficient = 9999;
    told->actual = part->value;
    return part->card->lost ? DEVICE_LOST : SUCCESS;
}

struct mem_state {
    uint32_t stype;
    const void* next;
    uint32_t health;
    uint64_t free, size;
};

int zesMemoryGetState(struct part* part, struct mem_state* told) {
    if (told->stype != MEM_STATE) return INVALID_ARGUMENT;
    told->size = (uint64_t)64 << 30;
    told->free = told->size - ((uint64_t)part->value << 30);
    return part->card->lost ? DEVICE_LOST : SUCCESS;
}
