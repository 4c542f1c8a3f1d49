// The whole of one operation, done by one thread once every rank has posted: the naive engine's
// work.
#pragma once

#include "comm/backend/posted_call.h"

#include <vector>

namespace lockstep::local {

// calls[r] is rank r's call; they agree (same_call). Writes every output.
void perform(const std::vector<PostedCall>& calls);
// The two ends of one message.
void perform(const PostedCall& send, const PostedCall& recv);

}  // namespace lockstep::local
