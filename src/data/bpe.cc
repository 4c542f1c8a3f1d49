#include <lockstep/data/bpe.h>

#include "base/check.h"
#include "base/fingerprint.h"
#include "data/bpe_tables.h"
#include "data/gpt2_words.h"

#include <ATen/ops/empty.h>
#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::data {

struct Bpe::Tables : BpeTables {
  explicit Tables(BpeTables read) : BpeTables(std::move(read)) {}
};

namespace {

// The tokens of one word. Neighbours are links in a list and pairs wait in a queue, so that a word
// of a million letters takes no million passes.
class Word {
 public:
  Word(const BpeTables& tables, std::string_view bytes) : tables_(tables) {
    const auto count = static_cast<std::int32_t>(bytes.size());
    for (std::int32_t i = 0; i < count; ++i)
      links_.push_back({tables.of_byte[static_cast<unsigned char>(bytes[i])], i - 1,
                        i + 1 < count ? i + 1 : -1});
    for (std::int32_t i = 0; i + 1 < count; ++i) offer(i);
  }

  std::vector<std::int32_t> merged() {
    std::vector<Pair> pass;
    while (!waiting_.empty()) {
      // Collect all places of a merge before merging the first of them: merging may create pairs of
      // the same rank (another merge may have made the same token earlier), and such a pair may
      // come before a collected one in the list.
      pass.clear();
      const std::int32_t rank = waiting_.top().rank;
      for (; !waiting_.empty() && waiting_.top().rank == rank; waiting_.pop())
        pass.push_back(waiting_.top());
      for (const Pair& pair : pass)
        if (is_there(pair)) merge(pair);
    }
    std::vector<std::int32_t> tokens;
    for (std::int32_t i = 0; i >= 0; i = links_[i].next) tokens.push_back(links_[i].token);
    return tokens;
  }

 private:
  struct Link {
    std::int32_t token, previous, next;  // -1: none
  };
  struct Pair {
    std::int32_t rank, left;  // by the place of the left one
    std::uint64_t key;
    // The first rank, and of equal ones the leftmost, is on top.
    bool operator<(const Pair& other) const {
      return rank != other.rank ? rank > other.rank : left > other.left;
    }
  };

  [[nodiscard]] std::uint64_t key_at(std::int32_t left) const {
    return pair_key(links_[left].token, links_[links_[left].next].token);
  }
  void offer(std::int32_t left) {
    if (left < 0 || links_[left].next < 0) return;
    const std::uint64_t key = key_at(left);
    auto merge = tables_.merges.find(key);
    if (merge != tables_.merges.end()) waiting_.push({merge->second.rank, left, key});
  }
  // Neighbours may have been merged with others since.
  [[nodiscard]] bool is_there(const Pair& pair) const {
    const Link& left = links_[pair.left];
    return left.token >= 0 && left.next >= 0 && key_at(pair.left) == pair.key;
  }
  void merge(const Pair& pair) {
    Link& left = links_[pair.left];
    Link& right = links_[left.next];
    left.token = tables_.merges.at(pair.key).result;
    right.token = -1;
    left.next = right.next;
    if (left.next >= 0) links_[left.next].previous = pair.left;
    offer(left.previous);
    offer(pair.left);
  }

  const BpeTables& tables_;
  std::vector<Link> links_;
  std::priority_queue<Pair> waiting_;
};

// Limits of the cache of words seen before; most words of a text are in the cache.
constexpr std::size_t most_known = 1 << 16;
constexpr std::size_t longest_known = 64;

// Places in it are counted in 32 bits.
constexpr std::size_t longest_word = std::numeric_limits<std::int32_t>::max();

}  // namespace

Bpe Bpe::load(const std::filesystem::path& vocabulary, const std::filesystem::path& merges) {
  return Bpe(std::make_shared<const Tables>(read_bpe_tables(vocabulary, merges)));
}

std::int64_t Bpe::size() const { return static_cast<std::int64_t>(tables_->bytes.size()); }

std::uint64_t Bpe::fingerprint() const {
  std::uint64_t all = fingerprint_of(size());
  for (const std::string& bytes : tables_->bytes)
    all = combine_fingerprints(all, lockstep::fingerprint(bytes));
  std::uint64_t of_merges = 0;  // in any order
  for (const auto& [pair, merge] : tables_->merges)
    of_merges ^= fingerprint_of(pair, merge.rank, merge.result);
  return combine_fingerprints(all, of_merges);
}

std::optional<std::int64_t> Bpe::find(std::string_view token) const {
  auto found = tables_->numbers.find(std::string(token));
  if (found == tables_->numbers.end()) return std::nullopt;
  return found->second;
}

at::Tensor Bpe::encode(std::string_view text, std::string_view source) const {
  std::vector<std::int32_t> tokens;
  std::unordered_map<std::string_view, std::vector<std::int32_t>> known;
  Gpt2Words words(text, source);
  for (auto word = words.next(); !word.empty(); word = words.next()) {
    check_input(word.size() <= longest_word,
                "{}: expected words of no more than {} bytes, found one of {}", source,
                longest_word, word.size());
    auto seen = known.find(word);
    if (seen != known.end()) {
      tokens.insert(tokens.end(), seen->second.begin(), seen->second.end());
      continue;
    }
    std::vector<std::int32_t> own = Word(*tables_, word).merged();
    tokens.insert(tokens.end(), own.begin(), own.end());
    if (word.size() <= longest_known && known.size() < most_known)
      known.emplace(word, std::move(own));
  }
  at::Tensor tensor = at::empty({static_cast<std::int64_t>(tokens.size())}, at::kInt);
  std::ranges::copy(tokens, tensor.data_ptr<std::int32_t>());
  return tensor;
}

std::string Bpe::decode(const at::Tensor& tokens) const {
  const at::Tensor all = tokens.to(at::kCPU, at::kLong).contiguous().view(-1);
  std::string text;
  for (std::int64_t token :
       c10::ArrayRef(all.const_data_ptr<std::int64_t>(), static_cast<std::size_t>(all.numel()))) {
    lockstep::check(token >= 0 && token < size(),
                    "Bpe::decode: expected tokens from 0 to {}, found {}", size() - 1, token);
    text += tables_->bytes[static_cast<std::size_t>(token)];
  }
  return text;
}

}  // namespace lockstep::data
