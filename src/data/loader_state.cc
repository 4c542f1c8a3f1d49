#include <lockstep/data/loader_state.h>

#include <lockstep/base/error.h>

#include <charconv>
#include <map>
#include <sstream>

namespace lockstep::data {
namespace {

[[noreturn]] void refuse(const std::string& expected, const std::string& found) {
  throw BadInput("reading a loader state: expected " + expected + ", found " + found);
}

// The fields of one text. take() removes a field, so that the fields left at the end are the
// unknown ones.
class Fields {
 public:
  explicit Fields(std::string_view text) {
    std::istringstream stream{std::string(text)};
    for (std::string word; stream >> word;) {
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos) refuse("name=number", "\"" + word + "\"");
      values_[word.substr(0, equals)] = word.substr(equals + 1);
    }
  }

  template <class Number>
  void take(const std::string& name, Number& number) {
    const auto field = values_.find(name);
    if (field == values_.end()) refuse("a field " + name, "none");
    const std::string text = field->second;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
      refuse(name + " to be a number", "\"" + text + "\"");
    values_.erase(field);
  }

  void take(const std::string& name, bool& flag) {
    int number = 0;
    take(name, number);
    if (number != 0 && number != 1) refuse(name + " to be 0 or 1", std::to_string(number));
    flag = number == 1;
  }

  void check_empty() const {
    if (!values_.empty()) refuse("no other fields", values_.begin()->first);
  }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace

std::string LoaderState::to_text() const {
  std::ostringstream text;
  text << "epoch=" << epoch << " batches=" << batches << " seed=" << seed << " samples=" << samples
       << " global_batch=" << global_batch << " shuffle=" << shuffle << " drop_last=" << drop_last;
  return text.str();
}

LoaderState LoaderState::from_text(std::string_view text) {
  Fields fields(text);
  LoaderState state;
  fields.take("epoch", state.epoch);
  fields.take("batches", state.batches);
  fields.take("seed", state.seed);
  fields.take("samples", state.samples);
  fields.take("global_batch", state.global_batch);
  fields.take("shuffle", state.shuffle);
  fields.take("drop_last", state.drop_last);
  fields.check_empty();
  return state;
}

}  // namespace lockstep::data
