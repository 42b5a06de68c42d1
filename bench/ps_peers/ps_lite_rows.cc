// The row benchmark on ps-lite: a program for one scheduler, one server and some workers, which
// ps-lite's own variables (DMLC_ROLE, ...) tell apart. The server is a handler of ours on ps-lite's
// key-value messages, since ps-lite has none for rows: an array of all rows there are, the id being
// the place, or with ROWS_COMPACT open addressing over as many rows as occur. A worker pulls and
// pushes batches of distinct sorted ids, read from a file; finding the distinct ids is not timed.
// At the end it compares its rows with what they must be (SGD, one worker). Not part of the
// package: bench/compare builds it where ps-lite is.
#include <ps/ps.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

int setting(const char* name) {
  return std::atoi(std::getenv(name));
}

class Table {
 public:
  Table(std::size_t dim, std::size_t most, bool is_adagrad, bool is_compact)
      : dim_(dim), is_adagrad_(is_adagrad), values_(zeros(most * dim)) {
    if (is_compact) slots_.resize(most * 2);
    if (is_adagrad) squares_ = zeros(most * dim);
  }

  float* row(ps::Key id, bool makes) {
    if (slots_.empty()) return values_.get() + id * dim_;
    std::size_t at = id * 0x9E3779B97F4A7C15ull % slots_.size();
    while (slots_[at].row != 0 && slots_[at].id != id) at = at + 1 == slots_.size() ? 0 : at + 1;
    if (slots_[at].row == 0) {
      if (!makes) return nullptr;
      slots_[at] = {id, ++rows_};
    }
    return values_.get() + (slots_[at].row - 1) * dim_;
  }

  void update(float* row, const float* gradient) {
    constexpr float kLr = 1.0f / 16;
    if (!is_adagrad_) {
      for (std::size_t i = 0; i < dim_; ++i) row[i] -= kLr * gradient[i];
      return;
    }
    float* squares = squares_.get() + (row - values_.get());
    for (std::size_t i = 0; i < dim_; ++i) {
      squares[i] += gradient[i] * gradient[i];
      row[i] -= kLr * gradient[i] / (std::sqrt(squares[i]) + 1e-10f);
    }
  }

  void handle(const ps::KVMeta& meta, const ps::KVPairs<float>& request,
              ps::KVServer<float>* server) {
    ps::KVPairs<float> answer;
    const std::size_t count = request.keys.size();
    if (meta.push)
      for (std::size_t i = 0; i < count; ++i)
        update(row(request.keys[i], true), request.vals.data() + i * dim_);
    if (meta.pull) {
      answer.keys = request.keys;
      answer.vals.resize(count * dim_);
      for (std::size_t i = 0; i < count; ++i) {
        const float* from = row(request.keys[i], false);
        for (std::size_t k = 0; k < dim_; ++k)
          answer.vals[i * dim_ + k] = from == nullptr ? 0 : from[k];
      }
    }
    server->Response(meta, answer);
  }

 private:
  struct Slot {
    ps::Key id = 0;
    std::uint64_t row = 0;  // From 1.
  };
  using Floats = std::unique_ptr<float[]>;

  // Written, so that all pages are there before anything is timed.
  static Floats zeros(std::size_t count) { return std::make_unique<float[]>(count); }

  std::size_t dim_;
  bool is_adagrad_;
  std::vector<Slot> slots_;  // None: the id is the place.
  Floats values_;
  Floats squares_;
  std::uint64_t rows_ = 0;
};

std::vector<ps::SArray<ps::Key>> read_batches() {
  std::ifstream file(std::getenv("ROWS_IDS"), std::ios::binary);
  std::vector<ps::SArray<ps::Key>> batches;
  std::uint64_t count = 0;
  while (file.read(reinterpret_cast<char*>(&count), sizeof count)) {
    ps::SArray<ps::Key> ids(count);
    file.read(reinterpret_cast<char*>(ids.data()),
              static_cast<std::streamsize>(count * sizeof(ps::Key)));
    batches.push_back(ids);
  }
  return batches;
}

// How many rows of the first batch are not what all pushes must have made of them.
std::size_t count_wrong(ps::KVWorker<float>* worker,
                        const std::vector<ps::SArray<ps::Key>>& batches, std::size_t dim) {
  std::unordered_map<ps::Key, int> pushes;
  const int calls = setting("ROWS_CALLS"), count = static_cast<int>(batches.size());
  for (int nth = 0; nth < count; ++nth) {
    const int turns = calls / count + (nth < calls % count);
    for (const ps::Key id : batches[static_cast<std::size_t>(nth)])
      pushes[id] += 1 + (setting("ROWS_ROUNDS") + 1) * turns;
  }
  ps::SArray<float> rows(batches[0].size() * dim);
  worker->Wait(worker->ZPull(batches[0], &rows));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < batches[0].size(); ++i) {
    const float right = static_cast<float>(pushes[batches[0][i]]) / -16384.0f;
    bool is_right = true;
    for (std::size_t k = 0; k < dim; ++k) is_right &= rows[i * dim + k] == right;
    wrong += !is_right;
  }
  return wrong;
}

void work(std::size_t dim) {
  ps::KVWorker<float> worker(0, 0);
  const auto batches = read_batches();
  const std::string what = std::getenv("ROWS_DO");
  const int rounds = setting("ROWS_ROUNDS");
  const int calls = setting("ROWS_CALLS");
  std::vector<ps::SArray<float>> gradients;
  for (const auto& ids : batches) {
    gradients.emplace_back(ids.size() * dim, 1.0f / 1024);
    worker.Wait(worker.ZPush(ids, gradients.back()));
  }
  for (int round = 0; round <= rounds; ++round) {  // The first one warms up.
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
    const auto start = Clock::now();
    for (int call = 0; call < calls; ++call) {
      const std::size_t nth = static_cast<std::size_t>(call) % batches.size();
      ps::SArray<float> rows(batches[nth].size() * dim);
      worker.Wait(worker.ZPull(batches[nth], &rows));
      if (what == "train") worker.Wait(worker.ZPush(batches[nth], gradients[nth]));
    }
    ps::Postoffice::Get()->Barrier(0, ps::kWorkerGroup);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (ps::MyRank() == 0 && round > 0) std::printf("round %.6f\n", seconds);
  }
  const bool is_sgd = std::string(std::getenv("ROWS_RULE")) == "sgd";
  if (setting("DMLC_NUM_WORKER") == 1 && is_sgd && what == "train")
    std::printf("wrong %zu\n", count_wrong(&worker, batches, dim));
}

}  // namespace

int main() {
  ps::Start(0);
  const auto dim = static_cast<std::size_t>(setting("ROWS_DIM"));
  if (ps::IsServer()) {
    const bool is_adagrad = std::string(std::getenv("ROWS_RULE")) == "adagrad";
    auto* table = new Table(dim, static_cast<std::size_t>(setting("ROWS_MOST")), is_adagrad,
                            setting("ROWS_COMPACT") != 0);
    auto* server = new ps::KVServer<float>(0);
    server->set_request_handle(
        [table](const ps::KVMeta& meta, const ps::KVPairs<float>& request,
                ps::KVServer<float>* self) { table->handle(meta, request, self); });
    ps::RegisterExitCallback([server, table] {
      delete server;
      delete table;
    });
  } else if (ps::IsWorker()) {
    work(dim);
  }
  ps::Finalize(0, true);
  return 0;
}
