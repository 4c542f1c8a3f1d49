#include "apps/bench/collectives/options.h"

#include "base/command_options.h"

#include <lockstep/base/format.h>
#include <lockstep/base/text.h>

#include "sys/topology.h"

#include <algorithm>

namespace lockstep::apps {
namespace {

constexpr int most_ranks = 64;
// A rank of every system holds an input and an output at once, ours in two kinds of memory.
constexpr std::int64_t tensors_a_rank = 2;

std::vector<Row> usual_rows() {
  std::vector<Row> rows;
  for (std::int64_t bytes : {kib, 64 * mib, 256 * mib}) rows.push_back({.bytes = bytes});
  for (Collective op : {Collective::all_gather, Collective::reduce_scatter, Collective::broadcast,
                        Collective::all_to_all})
    rows.push_back({.op = op, .bytes = 64 * mib});
  for (int ranks : {4, 8})
    for (bool outsider : {false, true})
      for (std::int64_t bytes : {kib, 64 * mib})
        rows.push_back(
            {.bytes = bytes, .ranks = ranks, .outsider = outsider, .ours_only = outsider});
  return rows;
}

std::int64_t size_of(const std::string& text) {
  auto bytes = parse_bytes(text);
  if (!bytes || *bytes <= 0)
    throw UsageError(formatted("--sizes: expected such as 1KiB, 64MiB or 4096, found '{}'", text));
  return *bytes;
}

std::vector<Row> chosen_rows(CollectivesOptions chosen) {
  if (chosen.ops.empty()) chosen.ops = {"all_reduce"};
  if (chosen.sizes.empty()) chosen.sizes = {"1KiB", "64MiB"};
  if (chosen.ranks.empty()) chosen.ranks = {2};
  std::vector<Row> rows;
  for (int ranks : chosen.ranks) {
    if (ranks < 1 || ranks > most_ranks)
      throw UsageError(formatted("--ranks: expected 1 to {}, found {}", most_ranks, ranks));
    for (const std::string& name : chosen.ops) {
      Collective op = collective_named(name);
      for (const std::string& size : chosen.sizes)
        for (int outsider = 0; outsider <= static_cast<int>(chosen.outsider); ++outsider)
          rows.push_back(
              {.op = op, .bytes = size_of(size), .ranks = ranks, .outsider = outsider == 1});
    }
  }
  return rows;
}

std::int64_t tensors_of(const Row& row, std::size_t peers) {
  return tensors_a_rank * row.ranks * static_cast<std::int64_t>(peers + 2);
}

bool fits(const Row& row, std::size_t peers) {
  return row.bytes <= sys::memory_size().available / tensors_of(row, peers);
}

std::string too_large(const Row& row, std::size_t peers) {
  return formatted("{}: all systems together need {} times {}, and {} are free", title_of(row),
                   tensors_of(row, peers), format_bytes(row.bytes),
                   format_bytes(sys::memory_size().available));
}

// The usual rows must also run on a small machine; chosen ones are not left out in silence.
void keep_what_fits(std::vector<Row>& rows, bool usual, std::size_t peers) {
  std::erase_if(rows, [&](const Row& row) {
    if (fits(row, peers)) return false;
    if (!usual) throw BadInput(too_large(row, peers));
    print_to(stderr, "left out: {}\n", too_large(row, peers));
    return true;
  });
}

}  // namespace

std::vector<Row> rows_of(const CollectivesOptions& options) {
  bool usual = options.ops.empty() && options.sizes.empty() && options.ranks.empty();
  auto rows = usual ? usual_rows() : chosen_rows(options);
  keep_what_fits(rows, usual, options.peers.size());
  for (Row& row : rows) row.bytes = even_bytes(row.op, row.bytes, row.ranks);
  std::ranges::stable_sort(rows, {}, &Row::ranks);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

}  // namespace lockstep::apps
