// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What torch includes of Gloo, of which it needs nothing here: see context.h.
