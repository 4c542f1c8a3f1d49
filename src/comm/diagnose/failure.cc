#include "comm/diagnose/failure.h"

#include <lockstep/base/error.h>
#include <lockstep/base/format.h>

#include <string_view>
#include <utility>

namespace lockstep {
namespace {

constexpr std::string_view dead_group_words = ", which is dead: ";

}  // namespace

std::string_view cause_in(std::string_view text) {
  auto begin = text.find(dead_group_words);
  return begin == std::string_view::npos ? text : text.substr(begin + dead_group_words.size());
}

void Failure::set(std::exception_ptr error) {
  if (!error_) error_ = std::move(error);
}

void Failure::rethrow_if_any() const {
  if (error_) std::rethrow_exception(error_);
}

void Failure::refuse_if_any(std::string_view call, std::string_view group) const {
  if (!error_) return;
  auto text = [&](const std::exception& error) {
    return formatted("{} on group {}{}{}", call, group, dead_group_words, error.what());
  };
  try {
    std::rethrow_exception(error_);
  } catch (const PeerLost& error) {
    throw PeerLost(text(error));
  } catch (const Timeout& error) {
    throw Timeout(text(error));
  } catch (const Mismatch& error) {
    throw Mismatch(text(error));
  } catch (const std::exception& error) {
    throw Aborted(text(error));
  }
}

}  // namespace lockstep
