#include "comm/diagnose/failure.h"

#include "base/format.h"

#include <lockstep/base/error.h>

#include <utility>

namespace lockstep::diagnose {
namespace {

constexpr std::string_view dead_group_words = ", which is dead: ";
constexpr std::string_view letters = "-PTMA";  // one per kind, in their order

std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return known.what();
  }
}

}  // namespace

std::exception_ptr error_of(FailureKind kind, const std::string& text) {
  switch (kind) {
    case FailureKind::peer_lost:
      return std::make_exception_ptr(PeerLost(text));
    case FailureKind::timeout:
      return std::make_exception_ptr(Timeout(text));
    case FailureKind::mismatch:
      return std::make_exception_ptr(Mismatch(text));
    default:
      return std::make_exception_ptr(Aborted(text));
  }
}

FailureKind kind_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost&) {
    return FailureKind::peer_lost;
  } catch (const Timeout&) {
    return FailureKind::timeout;
  } catch (const Mismatch&) {
    return FailureKind::mismatch;
  } catch (...) {
    return FailureKind::aborted;
  }
}

std::string FailureReport::written() const {
  return letters[static_cast<std::size_t>(kind)] + text;
}

FailureReport FailureReport::read(std::string_view text) {
  if (text.empty()) return {};
  auto letter = letters.find(text.front());
  bool is_known = letter != std::string_view::npos && letter > 0;
  return {is_known ? static_cast<FailureKind>(letter) : FailureKind::aborted,
          std::string(text.substr(1))};
}

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
  auto text = formatted("{} on group {}{}{}", call, group, dead_group_words, text_of(error_));
  std::rethrow_exception(error_of(kind_of(error_), text));
}

}  // namespace lockstep::diagnose
