// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Macros that headers of others define, and do not take back.

#define min(a, b) ((a) < (b) ? (a) : (b))  // windows.h
#define max(a, b) ((a) > (b) ? (a) : (b))
#define interface struct
#define near
#define far
#define small char
#define IN
#define OUT
#define OPTIONAL
#define TRUE 1
#define FALSE 0
#define ERROR 0
#define DELETE 3
#define check(x) ((void)(x))  // AssertMacros.h of Apple
#define I _Complex_I          // complex.h
#define None 0                // X11
#define Bool int
#define Status int
#define Success 0
#define Always 2
#define major(x) (x)  // sys/sysmacros.h
#define minor(x) (x)
#define signals public  // Qt
#define emit
#define foreach(a, b) for (a : b)
#define CHECK(x) ((void)(x))  // glog
#define LOG(x) (x)
