// Performs an operation as a whole, in one thread, once every rank has posted it.
#pragma once

#include "comm/backend/posted_call.h"

#include <vector>

namespace lockstep::local {

// calls[r] is rank r's call; all calls agree (same_call). Writes every output.
void perform(const std::vector<PostedCall>& calls);
// Performs one message, given its two ends.
void perform(const PostedCall& send, const PostedCall& recv);

}  // namespace lockstep::local
