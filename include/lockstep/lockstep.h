// All of Lockstep. Include single headers instead where build time matters.
#pragma once

#include <lockstep/base/error.h>
#include <lockstep/comm/group.h>
#include <lockstep/comm/init.h>
#include <lockstep/comm/local.h>
