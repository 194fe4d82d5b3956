/* An EMULATED Metal device for tests on Linux: it runs kernels by the emulation in tools/metal, and fails on request.
 *
 * It checks what Apple's validation layer checks of our calls: a size and an offset within a buffer, an encoder that is
 * ended before its command buffer is committed, pages of a no-copy buffer. A breach ends the process.
 */
#import <Metal/Metal.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../emulated.h"
#include "fake_metal.h"

enum { BUFFERS = EMULATED_BUFFERS, CONSTANTS = 64 };

static const int64_t DEFAULTS[FAKE_SETTINGS] = {
    [FAKE_MACOS] = 15,
    [FAKE_LANES] = 32,
    [FAKE_MOST_BYTES] = 1ll << 30,
    [FAKE_WORKING_SET] = 8ll << 30,
    [FAKE_ROOM] = 8ll << 30,
};
static int64_t settings[FAKE_SETTINGS], counts[FAKE_COUNTS];
static int64_t allocated;
static char *last_source;
static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static int32_t (*find_function)(const char *);
static uint32_t (*count_constants)(void);
static int32_t (*dispatch)(const struct emulated_call *, char *, uint64_t);

static int64_t add(int64_t *count, int64_t by) { return __atomic_add_fetch(count, by, __ATOMIC_SEQ_CST); }

static void breach(const char *what) {
    fprintf(stderr, "EMULATED Metal: %s\n", what);
    abort();
}

__attribute__((constructor)) void fake_metal_reset(void) {
    memcpy(settings, DEFAULTS, sizeof settings);
    for (int i = 0; i < FAKE_COUNTS; i++)
        if (i != FAKE_OBJECTS && i != FAKE_RESIDENT) counts[i] = 0;
    free(last_source);
    last_source = NULL;
}

void fake_metal_set(enum fake_setting setting, int64_t value) { settings[setting] = value; }
int64_t fake_metal_count(enum fake_count count) { return counts[count]; }
const char *fake_metal_source(void) { return last_source == NULL ? "" : last_source; }

int fake_metal_load(const char *emulation) {
    void *library = dlopen(emulation, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return 0;
    find_function = (int32_t (*)(const char *))dlsym(library, "emulated_function");
    count_constants = (uint32_t (*)(void))dlsym(library, "emulated_constant_count");
    dispatch = (int32_t (*)(const struct emulated_call *, char *, uint64_t))dlsym(library, "emulated_dispatch");
    return find_function != NULL && count_constants != NULL && dispatch != NULL;
}

/* --- Foundation --- */

static __thread id autoreleased[4096];
static __thread int autoreleased_count;

@implementation NSObject
+ (id)alloc {
    NSObject *made = calloc(1, class_getInstanceSize(self));
    object_setClass(made, self);
    made->references = 1;
    add(&counts[FAKE_OBJECTS], 1);
    return made;
}
- (id)init { return self; }
- (id)retain {
    __atomic_add_fetch(&references, 1, __ATOMIC_SEQ_CST);
    return self;
}
- (oneway void)release {
    int left = __atomic_sub_fetch(&references, 1, __ATOMIC_SEQ_CST);
    if (left < 0) breach("an object was released too often");
    if (left == 0) [self dealloc];
}
- (id)autorelease {
    if (autoreleased_count == 4096) breach("an autorelease pool is full");
    autoreleased[autoreleased_count++] = self;
    return self;
}
- (BOOL)respondsToSelector:(SEL)selector { return class_respondsToSelector(object_getClass(self), selector); }
- (void)dealloc {
    add(&counts[FAKE_OBJECTS], -1);
    free(self);
}
@end

@implementation NSAutoreleasePool
- (id)init {
    first = autoreleased_count;
    return self;
}
- (void)drain {
    while (autoreleased_count > first) [autoreleased[--autoreleased_count] release];
    [self release];
}
@end

@implementation NSString
+ (NSString *)stringWithUTF8String:(const char *)text {
    NSString *made = [[NSString alloc] init];
    made->characters = strdup(text);
    return [made autorelease];
}
- (const char *)UTF8String { return characters; }
- (void)dealloc {
    free(characters);
    [super dealloc];
}
@end

@implementation NSError
+ (NSError *)error:(const char *)description code:(NSInteger)code {
    NSError *made = [[NSError alloc] init];
    made->description = strdup(description);
    made->number = code;
    return [made autorelease];
}
- (NSString *)localizedDescription { return [NSString stringWithUTF8String:description]; }
- (NSInteger)code { return number; }
- (void)dealloc {
    free(description);
    [super dealloc];
}
@end

static void refuse(NSError **error, const char *why, NSInteger code) {
    if (error != NULL) *error = [NSError error:why code:code];
}

@implementation NSURL
+ (NSURL *)fileURLWithPath:(NSString *)path {
    NSURL *made = [[NSURL alloc] init];
    made->path = [path retain];
    return [made autorelease];
}
- (NSString *)path { return path; }
- (void)dealloc {
    [path release];
    [super dealloc];
}
@end

@implementation NSProcessInfo
+ (NSProcessInfo *)processInfo { return [[[NSProcessInfo alloc] init] autorelease]; }
- (NSOperatingSystemVersion)operatingSystemVersion {
    NSOperatingSystemVersion version = {settings[FAKE_MACOS], 1, 0};
    return version;
}
@end

@implementation NSLock
- (id)init {
    pthread_mutex_init(&mutex, NULL);
    return self;
}
- (void)lock { pthread_mutex_lock(&mutex); }
- (void)unlock { pthread_mutex_unlock(&mutex); }
@end

Class NSClassFromString(NSString *name) {
    if (settings[FAKE_MACOS] < 15) return Nil;
    return (Class)objc_getClass([name UTF8String]);
}

/* --- Metal --- */

@interface FakeBuffer : NSObject <MTLBuffer> {
@public
    uint8_t *bytes;
    NSUInteger length;
    BOOL isBorrowed;
}
@end

@implementation FakeBuffer
- (void *)contents { return bytes; }
- (NSUInteger)length { return length; }
- (void)dealloc {
    if (!isBorrowed) free(bytes);
    add(&allocated, -(int64_t)length);
    [super dealloc];
}
@end

@implementation MTLCompileOptions
- (id)init {
    isFast = YES; /* as Apple's */
    return self;
}
- (void)setFastMathEnabled:(BOOL)enabled { isFast = enabled; }
- (void)setLanguageVersion:(MTLLanguageVersion)version { language = version; }
- (BOOL)isFast { return isFast; }
- (NSUInteger)language { return language; }
@end

@implementation MTLFunctionConstantValues
- (id)init {
    for (int i = 0; i < CONSTANTS; i++) numbers[i] = EMULATED_UNSET;
    return self;
}
- (void)setConstantValue:(const void *)value type:(MTLDataType)type atIndex:(NSUInteger)index {
    if (type != MTLDataTypeUInt || index >= CONSTANTS) breach("a constant is no uint, or has too high an index");
    memcpy(&numbers[index], value, sizeof numbers[index]);
}
- (const uint32_t *)numbers { return numbers; }
@end

@interface FakeFunction : NSObject <MTLFunction> {
@public
    int32_t number;
    uint32_t constants[CONSTANTS];
}
@end
@implementation FakeFunction
@end

@interface FakePipeline : NSObject <MTLComputePipelineState> {
@public
    FakeFunction *function;
}
@end
@implementation FakePipeline
- (NSUInteger)threadExecutionWidth { return settings[FAKE_LANES]; }
- (NSUInteger)maxTotalThreadsPerThreadgroup { return 1024; }
- (void)dealloc {
    [function release];
    [super dealloc];
}
@end

@interface FakeLibrary : NSObject <MTLLibrary>
@end
@implementation FakeLibrary
- (id<MTLFunction>)newFunctionWithName:(NSString *)name
                        constantValues:(MTLFunctionConstantValues *)values
                                 error:(NSError **)error {
    int32_t number = find_function == NULL ? -1 : find_function([name UTF8String]);
    if (number < 0) {
        refuse(error, "there is no function of that name", 1);
        return nil;
    }
    FakeFunction *made = [[FakeFunction alloc] init];
    made->number = number;
    memcpy(made->constants, [values numbers], sizeof made->constants);
    return made;
}
@end

/* One recorded launch or copy. */
typedef struct {
    FakePipeline *pipeline; /* nil: a copy from buffers[0] to buffers[1] */
    FakeBuffer *buffers[BUFFERS];
    NSUInteger offsets[BUFFERS], bytes;
    MTLSize groups;
} FakeWork;

@interface FakeCommands : NSObject <MTLCommandBuffer> {
@public
    FakeWork *work;
    size_t count, capacity;
    int openEncoders;
    MTLCommandBufferStatus status;
    NSError *failure;
    int64_t code;
    FakeCommands *former; /* committed before this one and not run yet */
    BOOL isCommitted;
}
@end

@interface FakeEncoder : NSObject <MTLComputeCommandEncoder, MTLBlitCommandEncoder> {
@public
    FakeCommands *commands;
    FakeWork next;
    BOOL isEnded;
}
@end

@implementation FakeEncoder
- (void)setComputePipelineState:(id<MTLComputePipelineState>)state {
    next.pipeline = (FakePipeline *)state;
    add(&counts[FAKE_SWITCHES], 1);
}
- (void)setBuffer:(id<MTLBuffer>)buffer offset:(NSUInteger)offset atIndex:(NSUInteger)index {
    if (index >= BUFFERS || buffer == nil || offset >= [buffer length]) breach("a buffer is bound out of range");
    next.buffers[index] = (FakeBuffer *)buffer;
    next.offsets[index] = offset;
}
- (void)setBufferOffset:(NSUInteger)offset atIndex:(NSUInteger)index {
    if (index >= BUFFERS || next.buffers[index] == nil || offset >= next.buffers[index]->length)
        breach("an offset is out of range");
    next.offsets[index] = offset;
}
- (void)record {
    if (isEnded) breach("a command was encoded after the encoder's end");
    if (commands->count == commands->capacity) {
        commands->capacity = 2 * commands->capacity + 16;
        commands->work = realloc(commands->work, commands->capacity * sizeof *commands->work);
    }
    FakeWork *work = &commands->work[commands->count++];
    *work = next;
    [work->pipeline retain];
    for (int i = 0; i < BUFFERS; i++) [work->buffers[i] retain];
}
- (void)dispatchThreadgroups:(MTLSize)groups threadsPerThreadgroup:(MTLSize)threads {
    if (next.pipeline == nil || threads.width != 64 || threads.height * threads.depth * groups.height * groups.depth != 1)
        breach("a launch has no pipeline, or another shape");
    next.groups = groups;
    add(&counts[FAKE_DISPATCHES], 1);
    [self record];
}
- (void)copyFromBuffer:(id<MTLBuffer>)source
          sourceOffset:(NSUInteger)sourceOffset
              toBuffer:(id<MTLBuffer>)target
     destinationOffset:(NSUInteger)targetOffset
                  size:(NSUInteger)size {
    if (sourceOffset + size > [source length] || targetOffset + size > [target length] || size == 0 || size % 4 ||
        sourceOffset % 4 || targetOffset % 4)
        breach("a copy is out of range, empty, or not of whole words");
    next.buffers[0] = (FakeBuffer *)source;
    next.buffers[1] = (FakeBuffer *)target;
    next.offsets[0] = sourceOffset;
    next.offsets[1] = targetOffset;
    next.bytes = size;
    [self record];
}
- (void)endEncoding {
    isEnded = YES;
    commands->openEncoders--;
}
@end

static FakeCommands *newest; /* of those that were committed */

@implementation FakeCommands
- (FakeEncoder *)encoder {
    if (openEncoders || isCommitted) breach("an encoder is open, or the commands are committed");
    FakeEncoder *made = [[[FakeEncoder alloc] init] autorelease];
    made->commands = self;
    openEncoders++;
    return made;
}
- (id<MTLComputeCommandEncoder>)computeCommandEncoder {
    add(&counts[FAKE_ENCODERS], 1);
    return [self encoder];
}
- (id<MTLBlitCommandEncoder>)blitCommandEncoder {
    add(&counts[FAKE_BLITS], 1);
    return [self encoder];
}
- (void)fail:(const char *)why code:(NSInteger)number {
    failure = [[NSError error:why code:number] retain];
    status = MTLCommandBufferStatusError;
}
- (void)runCall:(const FakeWork *)each {
    struct emulated_call call = {.function = each->pipeline->function->number,
                                 .groups = (uint32_t)each->groups.width,
                                 .seed = (uint32_t)settings[FAKE_SEED],
                                 .constant_count = count_constants(),
                                 .constants = each->pipeline->function->constants};
    char why[1024] = "";
    for (int i = 0; i < BUFFERS; i++)
        call.buffers[i] = each->buffers[i] == nil ? NULL : each->buffers[i]->bytes + each->offsets[i];
    if (dispatch(&call, why, sizeof why)) [self fail:why code:1];
}
- (void)letGo {
    for (size_t i = 0; i < count; i++) {
        [work[i].pipeline release];
        for (int k = 0; k < BUFFERS; k++) [work[i].buffers[k] release];
    }
    count = 0;
}
/* Runs what was committed before, then this, and lets go of what it used. */
- (void)run {
    if (status >= MTLCommandBufferStatusCompleted) return;
    [former run];
    [former release];
    former = nil;
    if (code) [self fail:"the emulated GPU was told to fail" code:code];
    for (size_t i = 0; i < count && status != MTLCommandBufferStatusError; i++) {
        const FakeWork *each = &work[i];
        if (each->pipeline != nil)
            [self runCall:each];
        else
            memcpy(each->buffers[1]->bytes + each->offsets[1], each->buffers[0]->bytes + each->offsets[0], each->bytes);
    }
    if (status != MTLCommandBufferStatusError) status = MTLCommandBufferStatusCompleted;
    [self letGo];
}
- (void)commit {
    if (openEncoders || isCommitted) breach("an encoder is open, or the commands are committed twice");
    pthread_mutex_lock(&running);
    isCommitted = YES;
    code = settings[FAKE_FAIL_NEXT];
    settings[FAKE_FAIL_NEXT] = 0;
    counts[FAKE_COMMITTED]++;
    former = newest; /* moves the reference */
    newest = [self retain];
    if (!settings[FAKE_IS_LATE]) [self run];
    pthread_mutex_unlock(&running);
}
- (void)waitUntilCompleted {
    if (!isCommitted) breach("commands are waited for that were not committed");
    pthread_mutex_lock(&running);
    [self run];
    if (newest == self) {
        newest = nil;
        [self release];
    }
    pthread_mutex_unlock(&running);
}
- (MTLCommandBufferStatus)status { return status; }
- (NSError *)error { return failure; }
- (void)dealloc {
    [self letGo];
    free(work);
    [failure release];
    [former release];
    [super dealloc];
}
@end

@interface MTLResidencySetDescriptor : NSObject
@end
@implementation MTLResidencySetDescriptor
@end

@interface FakeResidencySet : NSObject {
    BOOL isCommitted;
}
@end
@implementation FakeResidencySet
- (void)addAllocation:(id)buffer { add(&counts[FAKE_RESIDENT], 1), isCommitted = NO; }
- (void)removeAllocation:(id)buffer { add(&counts[FAKE_RESIDENT], -1), isCommitted = NO; }
- (void)commit { isCommitted = YES; }
- (void)requestResidency {
    if (!isCommitted) breach("residency was requested of a set that was not committed");
    add(&counts[FAKE_REQUESTS], 1);
}
@end

@interface FakeQueue : NSObject <MTLCommandQueue>
@end
@implementation FakeQueue
- (id<MTLCommandBuffer>)commandBuffer {
    return settings[FAKE_NO_COMMANDS] ? nil : [[[FakeCommands alloc] init] autorelease];
}
- (void)addResidencySet:(id)set {
}
- (void)dealloc {
    pthread_mutex_lock(&running);
    [newest run];
    [newest release];
    newest = nil;
    pthread_mutex_unlock(&running);
    [super dealloc];
}
@end

@interface FakeDevice : NSObject <MTLDevice>
@end
@implementation FakeDevice
- (NSString *)name { return [NSString stringWithUTF8String:"EMULATED Metal device"]; }
- (BOOL)supportsFamily:(MTLGPUFamily)family { return family == MTLGPUFamilyApple7 && !settings[FAKE_OLD_GPU]; }
- (NSUInteger)maxBufferLength { return settings[FAKE_MOST_BYTES]; }
- (uint64_t)recommendedMaxWorkingSetSize { return settings[FAKE_WORKING_SET]; }
- (NSUInteger)currentAllocatedSize { return allocated; }
- (id<MTLCommandQueue>)newCommandQueue { return [[FakeQueue alloc] init]; }
- (id<MTLLibrary>)newLibraryWithURL:(NSURL *)url error:(NSError **)error {
    char magic[4] = "";
    FILE *file = fopen([[url path] UTF8String], "rb");
    size_t got = file == NULL ? 0 : fread(magic, 1, 4, file);
    if (file != NULL) fclose(file);
    if (settings[FAKE_REFUSE_LIBRARY] || got != 4 || memcmp(magic, "MTLB", 4)) {
        refuse(error, "the file is no library for this system", 1);
        return nil;
    }
    return [[FakeLibrary alloc] init];
}
- (id<MTLLibrary>)newLibraryWithSource:(NSString *)source options:(MTLCompileOptions *)options error:(NSError **)error {
    counts[FAKE_FAST_MATH] = [options isFast];
    if (settings[FAKE_REFUSE_SOURCE] || [options language] != MTLLanguageVersion2_3) {
        refuse(error, "program_source:1:1: error: told to refuse", 3);
        return nil;
    }
    free(last_source);
    last_source = strdup([source UTF8String]);
    return [[FakeLibrary alloc] init];
}
- (id<MTLComputePipelineState>)newComputePipelineStateWithFunction:(id<MTLFunction>)function error:(NSError **)error {
    FakePipeline *made = [[FakePipeline alloc] init];
    made->function = (FakeFunction *)[function retain];
    return made;
}
- (FakeBuffer *)buffer:(NSUInteger)length {
    if ((int64_t)length > settings[FAKE_MOST_BYTES] || allocated + (int64_t)length > settings[FAKE_ROOM] || length == 0)
        return nil;
    FakeBuffer *made = [[FakeBuffer alloc] init];
    made->length = length;
    add(&allocated, (int64_t)length);
    return made;
}
- (id<MTLBuffer>)newBufferWithLength:(NSUInteger)length options:(MTLResourceOptions)options {
    FakeBuffer *made = [self buffer:length];
    if (made != nil) made->bytes = calloc(1, length);
    return made;
}
- (id<MTLBuffer>)newBufferWithBytesNoCopy:(void *)pointer
                                   length:(NSUInteger)length
                                  options:(MTLResourceOptions)options
                              deallocator:(void *)deallocator {
    NSUInteger page = (NSUInteger)sysconf(_SC_PAGESIZE);
    if ((uintptr_t)pointer % page || length % page) breach("a no-copy buffer is not of whole pages");
    FakeBuffer *made = [self buffer:length];
    if (made != nil) {
        made->bytes = pointer;
        made->isBorrowed = YES;
        add(&counts[FAKE_NO_COPIES], 1);
    }
    return made;
}
- (id)newResidencySetWithDescriptor:(id)descriptor error:(NSError **)error {
    return [[FakeResidencySet alloc] init];
}
@end

id<MTLDevice> MTLCreateSystemDefaultDevice(void) { return settings[FAKE_NO_DEVICE] ? nil : [[FakeDevice alloc] init]; }
