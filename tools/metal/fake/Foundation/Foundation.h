/* The few classes of Apple's Foundation that metal_device.m uses, for gcc's Objective-C on Linux; tests only. */
#ifndef FAKE_FOUNDATION_H
#define FAKE_FOUNDATION_H

#include <objc/objc.h>
#include <objc/runtime.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

typedef unsigned long NSUInteger;
typedef long NSInteger;

typedef struct {
    NSInteger majorVersion, minorVersion, patchVersion;
} NSOperatingSystemVersion;

@protocol NSObject
- (id)retain;
- (oneway void)release;
- (id)autorelease;
- (BOOL)respondsToSelector:(SEL)selector;
@end

__attribute__((objc_root_class)) @interface NSObject <NSObject> {
    Class isa;
    int references;
}
+ (id)alloc;
- (id)init;
- (void)dealloc;
@end

@interface NSAutoreleasePool : NSObject {
    int first;
}
- (void)drain;
@end

@interface NSString : NSObject {
    char *characters;
}
+ (NSString *)stringWithUTF8String:(const char *)text;
- (const char *)UTF8String;
@end

@interface NSError : NSObject {
    NSInteger number;
    char *description;
}
- (NSString *)localizedDescription;
- (NSInteger)code;
@end

@interface NSURL : NSObject {
    NSString *path;
}
+ (NSURL *)fileURLWithPath:(NSString *)path;
- (NSString *)path;
@end

@interface NSProcessInfo : NSObject
+ (NSProcessInfo *)processInfo;
- (NSOperatingSystemVersion)operatingSystemVersion;
@end

@interface NSLock : NSObject {
    pthread_mutex_t mutex;
}
- (void)lock;
- (void)unlock;
@end

extern Class NSClassFromString(NSString *name);

#endif
