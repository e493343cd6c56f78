// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// torch includes this header of Gloo, but needs nothing of it here: see context.h.
