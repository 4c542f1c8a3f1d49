// Exchange: how many elements go from each rank to each in an uneven all_to_all, with the sums that
// a plan asks for at every look.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::shm {

class Exchange {
 public:
  Exchange() = default;
  // matrix[i * size + j] elements go from rank i to rank j.
  Exchange(int size, std::span<const std::int64_t> matrix)
      : size_(static_cast<std::size_t>(size)), received_(size_) {
    before_.reserve(size_ * (size_ + 1));
    for (std::size_t source = 0; source < size_; ++source) {
      std::int64_t sum = 0;
      for (std::size_t destination = 0; destination < size_; ++destination) {
        std::int64_t count = matrix[source * size_ + destination];
        before_.push_back(sum);
        sum += count;
        received_[destination] += count;
      }
      before_.push_back(sum);
    }
  }

  [[nodiscard]] std::int64_t piece(int source, int destination) const {
    return before(source, destination + 1) - before(source, destination);
  }
  // What the source sends to the ranks before that one.
  [[nodiscard]] std::int64_t before(int source, int destination) const {
    return before_[static_cast<std::size_t>(source) * (size_ + 1) +
                   static_cast<std::size_t>(destination)];
  }
  [[nodiscard]] std::int64_t received(int destination) const {
    return received_[static_cast<std::size_t>(destination)];
  }

 private:
  std::size_t size_ = 0;
  std::vector<std::int64_t> before_;
  std::vector<std::int64_t> received_;
};

}  // namespace lockstep::shm
