#include <lockstep/data/text.h>

#include "base/check.h"
#include "base/text.h"
#include "sys/plain_file.h"

#include <lockstep/base/error.h>

#include <algorithm>
#include <new>
#include <span>
#include <system_error>

namespace lockstep::data {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, const std::string& expected,
                         const std::string& found) {
  throw BadInput("reading " + path.string() + ": expected " + expected + ", found " + found);
}

bool chosen(const fs::path& file, const std::vector<std::string>& extensions) {
  if (extensions.empty()) return true;
  const std::string name = file.filename().string();
  return std::ranges::any_of(
      extensions, [&](const std::string& extension) { return name.ends_with(extension); });
}

std::vector<fs::path> files_below(const fs::path& folder,
                                  const std::vector<std::string>& extensions) {
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file() && chosen(entry.path(), extensions)) files.push_back(entry.path());
  }
  std::ranges::sort(files, {}, [&](const fs::path& file) {
    return file.lexically_relative(folder).generic_string();
  });
  return files;
}

[[noreturn]] void refuse_folder(const fs::path& path, const std::vector<std::string>& extensions) {
  const std::string names = extensions.empty() ? "" : " whose names end in " + join(extensions);
  const bool is_empty = fs::is_empty(path);
  refuse(path, "a text file, or a folder with text files" + names,
         is_empty ? "an empty folder" : "a folder without such files");
}

// Appends a file. Allows a third of the memory, because the text, its tokens and a copy of them are
// in memory together.
void append(std::string& text, const fs::path& file) {
  constexpr double share = 1.0 / 3;
  try {
    sys::PlainFile opened(file);
    sys::check_fits_memory(file, text.size() + opened.size(), share);
    constexpr std::size_t piece = 1 << 20;
    for (std::size_t wanted = opened.size() + 1;; wanted = piece) {
      const std::size_t before = text.size();
      sys::check_fits_memory(file, before + wanted, share);  // the file may grow while it is read
      text.resize(before + wanted);
      const std::size_t found =
          opened.read(std::as_writable_bytes(std::span(text).subspan(before)));
      text.resize(before + found);
      if (found < wanted) break;
    }
  } catch (const SystemError& error) {
    refuse(file, "a readable file", std::generic_category().message(error.error_number()));
  } catch (const std::bad_alloc&) {
    refuse(file, "a text that fits into memory", "no memory for it");
  }
}

Vocabulary vocabulary_for(const std::string& text, const std::string& source,
                          const TextOptions& options) {
  if (options.vocabulary) return *options.vocabulary;
  return options.bytes ? Vocabulary::bytes() : Vocabulary::characters(text, source);
}

}  // namespace

std::string read_text(const fs::path& path, const std::vector<std::string>& extensions) {
  std::string text;
  try {
    if (path.empty() || !fs::exists(path))
      refuse(path, "a file or a folder of text", "nothing with this name");
    if (fs::is_directory(path)) {
      const std::vector<fs::path> files = files_below(path, extensions);
      if (files.empty()) refuse_folder(path, extensions);
      for (const fs::path& file : files) append(text, file);
    } else {
      append(text, path);
    }
  } catch (const std::system_error& error) {
    refuse(path, "a readable folder", error.code().message());
  }
  if (text.empty()) refuse(path, "some text", "0 bytes");
  return text;
}

Text load_text(const fs::path& path, const TextOptions& options) {
  check(options.validation >= 0 && options.validation < 1,
        "load_text: expected a validation part in [0, 1), found {}", options.validation);
  const std::string all = read_text(path, options.extensions);
  Text result{vocabulary_for(all, path.string(), options), {}, {}};
  const at::Tensor tokens = result.vocabulary.encode(all, path.string());
  const auto count = tokens.size(0);
  const auto train =
      static_cast<std::int64_t>(static_cast<double>(count) * (1 - options.validation));
  result.train = tokens.narrow(0, 0, train);
  result.validation = tokens.narrow(0, train, count - train);
  return result;
}

}  // namespace lockstep::data
