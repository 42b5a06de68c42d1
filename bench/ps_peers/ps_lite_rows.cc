// The row benchmark on ps-lite: a program for one scheduler, one server and some workers, which
// ps-lite's own variables (DMLC_ROLE, ...) tell apart. The server is a handler of ours on ps-lite's
// key-value messages, since ps-lite has none for rows: open addressing over one slab. A worker
// pulls and pushes batches of distinct sorted ids, read from files that rows.py wrote; finding the
// distinct ids is not timed. Not part of the package: bench/ps_peers/rows.py builds it where
// ps-lite is.
#include <ps/ps.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

int setting(const char* name) {
  return std::atoi(std::getenv(name));
}

class Table {
 public:
  Table(std::size_t dim, std::size_t most, bool is_adagrad)
      : dim_(dim), is_adagrad_(is_adagrad), slots_(most * 2), values_(most * dim) {
    if (is_adagrad) squares_.resize(most * dim);
  }

  float* row(ps::Key id, bool makes) {
    std::size_t at = id * 0x9E3779B97F4A7C15ull % slots_.size();
    while (slots_[at].row != 0 && slots_[at].id != id) at = at + 1 == slots_.size() ? 0 : at + 1;
    if (slots_[at].row == 0) {
      if (!makes) return nullptr;
      slots_[at] = {id, ++rows_};
    }
    return values_.data() + (slots_[at].row - 1) * dim_;
  }

  void update(float* row, const float* gradient) {
    constexpr float kLr = 1.0f / 16;
    if (!is_adagrad_) {
      for (std::size_t i = 0; i < dim_; ++i) row[i] -= kLr * gradient[i];
      return;
    }
    float* squares = squares_.data() + (row - values_.data());
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
  std::size_t dim_;
  bool is_adagrad_;
  std::vector<Slot> slots_;
  std::vector<float> values_;
  std::vector<float> squares_;
  std::uint64_t rows_ = 0;
};

std::vector<ps::SArray<ps::Key>> read_batches(int worker) {
  const std::string name = std::string(std::getenv("ROWS_IDS")) + "." + std::to_string(worker);
  std::ifstream file(name, std::ios::binary);
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

void work(std::size_t dim) {
  ps::KVWorker<float> worker(0, 0);
  const auto batches = read_batches(ps::MyRank());
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
}

}  // namespace

int main() {
  ps::Start(0);
  const auto dim = static_cast<std::size_t>(setting("ROWS_DIM"));
  if (ps::IsServer()) {
    const bool is_adagrad = std::string(std::getenv("ROWS_RULE")) == "adagrad";
    auto* table = new Table(dim, static_cast<std::size_t>(setting("ROWS_MOST")), is_adagrad);
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
