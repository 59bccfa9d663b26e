// Every subcommand with what people get wrong: no such file, a directory in place of a file,
// garbage, an unknown run, a controller that is not there. A mistake of the user is status 2, a
// failure of the environment 1, and the message names what was given.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "base/files.h"
#include "protocol/json.h"
#include "tests/cli/program.h"
#include "tests/cli/synthetic_ledger.h"
#include "tests/controller/registration.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

namespace fs = std::filesystem;
using test::DaemonProcess;
using test::EndedProcess;
using ::testing::HasSubstr;
using ::testing::Not;

// "@/" in an argument is the folder of the test's files, "@url" a controller with the run small/1.
struct Case {
  std::string command;  // words separated by single spaces
  int status;
  std::string message;
};

void PrintTo(const Case& one, std::ostream* out) { *out << "gnomon " << one.command; }

class BadCommandLineTest : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    files_ = new TemporaryDirectory();
    daemon_ = new DaemonProcess();
    daemon_->start();
    daemon_->client().checked("POST", "/v1/runs", to_json(small_registration()));
    fs::path root = files_->path();
    for (const char* name : {"folder", "broken_data", "broken_checkpoint", "folder.model"}) {
      fs::create_directory(root / name);
    }
    const std::string garbage("\x7f\x00[[[ \xff garbage", 16);
    for (const char* name : {"garbage", "garbage.model", "garbage.jsonl",
                             "broken_data/dataset.json", "broken_checkpoint/manifest.json"}) {
      write_file_atomically(root / name, garbage);
    }
    write_file_atomically(root / "empty", "");
    write_file_atomically(root / "slips.toml", "budget_percent = 5\nsteps = 3\n");
    write_file_atomically(root / "six.txt", "sixsix");
    write_file_atomically(root / "text.txt", std::string(1000, 'x'));
    write_file_atomically(root / "plan.toml", small_registration().base_plan);
    write_caught_fault(root / "ledger.sqlite");
  }
  static void TearDownTestSuite() {
    delete daemon_;
    delete files_;
  }
  static std::vector<std::string> arguments_of(const std::string& command) {
    std::vector<std::string> arguments;
    for (size_t at = 0; at <= command.size();) {
      size_t end = std::min(command.find(' ', at), command.size());
      std::string word = command.substr(at, end - at);
      if (word == "@url") word = daemon_->url();
      if (word.starts_with("@/")) word = files_->path().string() + word.substr(1);
      arguments.push_back(word);
      at = end + 1;
    }
    return arguments;
  }

  static TemporaryDirectory* files_;
  static DaemonProcess* daemon_;
};
TemporaryDirectory* BadCommandLineTest::files_ = nullptr;
DaemonProcess* BadCommandLineTest::daemon_ = nullptr;

TEST_P(BadCommandLineTest, HasItsStatusAndNamesWhatWasGiven) {
  const Case& one = GetParam();
  EndedProcess result = run_gnomon(arguments_of(one.command));
  EXPECT_EQ(result.status, one.status) << result.errors << result.output;
  EXPECT_THAT(result.errors, HasSubstr(one.message));
  // One sentence for people, without what only we know.
  EXPECT_THAT(result.errors, HasSubstr("gnomon: "));
  EXPECT_THAT(result.errors, Not(HasSubstr(".tmp")));
  EXPECT_THAT(result.errors, Not(HasSubstr(".staging")));
}

const std::vector<Case> kMistakes = {
    {"runs --url nonsense", 2, "--url"},
    {"runs --url ftp://127.0.0.1", 2, "ftp://127.0.0.1"},
    {"runs extra", 2, "extra"},
    {"wacth small", 2, "did you mean watch?"},
    {"bench detct", 2, "did you mean detect?"},
    {"status small --jso --url @url", 2, "did you mean --json?"},
    {"status run-99 --url @url", 2, "RUN = run-99: not accepted; expected small/1 (run-1)"},
    {"status --url @url", 2, "RUN is required"},
    {"windows nobody --url @url", 2, "RUN = nobody"},
    {"decisions small/2 --url @url", 2, "RUN = small/2"},
    {"directives run-0 --url @url", 2, "RUN = run-0"},
    {"notices run-99 --url @url", 2, "RUN = run-99"},
    {"watch run-99 --url @url", 2, "RUN = run-99"},
    {"watch small --interval 0 --url @url", 2, "--interval"},
    {"override run-99 pause --reason r --url @url", 2, "RUN = run-99"},
    {"override small frobnicate --reason r --url @url", 2, "KIND = frobnicate"},
    {"override small pause --url @url", 2, "--reason is required"},
    {"override small pause --reason  --url @url", 2, "--reason"},
    {"override small pause --reason r --owner  --url @url", 2, "--owner"},
    {"override small pause now --reason r --url @url", 2, "nothing after pause"},
    {"override small pause --for 2h --reason r --url @url", 2, "--for = 2h"},
    {"override small silence --reason r --url @url", 2, "--for"},
    {"override small silence --for 2 --reason r --url @url", 2, "--for = 2"},
    {"override small silence --for -2h --reason r --url @url", 2, "--for = -2h"},
    {"override small silence --for 2weeks --reason r --url @url", 2, "90s, 15m, 2h, 3d"},
    {"override small mode --for 2h --reason r --url @url", 2, "observe, advise or enforce"},
    {"override small mode off --for 2h --reason r --url @url", 2, "PLAN_OR_MODE = off"},
    {"override small set_plan --for 2h --reason r --url @url", 2, "a plan file"},
    {"override small set_plan @/absent --for 2h --reason r --url @url", 2, "absent"},
    {"override small set_plan @/folder --for 2h --reason r --url @url", 2, "folder"},
    {"override small set_plan @/garbage --for 2h --reason r --url @url", 2, "garbage"},
    {"summary --ledger @/absent", 2, "absent"},
    {"summary --ledger @/folder", 2, "folder"},
    {"summary --ledger @/garbage", 2, "garbage"},
    {"summary --ledger @/empty", 2, "empty"},
    {"summary --ledger @/ledger.sqlite --run run-99", 2, "run-99"},
    {"summary run-99 --ledger @/ledger.sqlite", 2, "run-99"},
    {"summary --ledger @/ledger.sqlite --expect miracle", 2, "miracle"},
    {"summary --ledger @/ledger.sqlite --wall-seconds -1", 2, "--wall-seconds"},
    {"summary --ledger @/ledger.sqlite --out @/absent/summary.json", 2, "absent/summary.json:"},
    {"summary --ledger @/ledger.sqlite --out @/folder", 2, "folder:"},
    {"report --ledger @/absent --out @/report.html", 2, "absent"},
    {"report --ledger @/folder --out @/report.html", 2, "folder"},
    {"report --ledger @/garbage --out @/report.html", 2, "garbage"},
    {"report --ledger @/ledger.sqlite --run nobody --out @/report.html", 2, "nobody"},
    {"report --ledger @/ledger.sqlite --out @/absent/report.html", 2, "absent/report.html:"},
    {"report --ledger @/ledger.sqlite", 2, "--out is required"},
    {"backtest --ledger @/absent", 2, "absent"},
    {"backtest --ledger @/folder", 2, "folder"},
    {"backtest --ledger @/garbage", 2, "garbage"},
    {"backtest --ledger @/ledger.sqlite --run nobody", 2, "nobody"},
    {"backtest --ledger @/ledger.sqlite --policy @/absent", 2, "absent"},
    {"backtest --ledger @/ledger.sqlite --policy @/folder", 2, "folder"},
    {"backtest --ledger @/ledger.sqlite --policy @/garbage", 2, "garbage"},
    {"data prepare --input @/absent --out @/data", 2, "--input = "},
    {"data prepare --input @/folder --out @/data", 2, "files ending in"},
    {"data prepare --input @/empty --out @/data", 2, "--input = "},
    {"data prepare --input @/six.txt --out @/data", 2, "tokens to train on and"},
    {"data prepare --input @/garbage.jsonl --out @/data", 2, "garbage.jsonl"},
    {"data prepare --input @/text.txt --out @/empty", 2, "--out = "},
    {"data prepare --input @/text.txt --out @/broken_checkpoint", 2, "manifest.json"},
    {"data prepare --input @/text.txt --out @/data --heldout 2", 2, "--heldout = 2"},
    {"data prepare --input @/text.txt --out @/data --heldout x", 2, "--heldout"},
    {"data prepare --input @/text.txt --out @/data --shard-tokens 0", 2, "--shard-tokens = 0"},
    {"data prepare --input @/text.txt --out @/data --sequence -1", 2, "--sequence = -1"},
    {"data prepare --input @/text.txt --out @/data --tokenizer bpe", 2, "--tokenizer = bpe"},
    {"data prepare --input @/text.txt --out @/data --tokenizer sentencepiece:1", 2, "260"},
    {"data prepare --input @/text.txt --out @/data --tokenizer @/absent.model", 2, "absent.model"},
    {"data prepare --input @/text.txt --out @/data --tokenizer @/folder.model", 2, "folder.model"},
    {"data prepare --input @/text.txt --out @/data --tokenizer @/garbage.model", 2,
     "garbage.model"},
    {"data info @/absent", 2, "absent"},
    {"data info @/folder", 2, "folder"},
    {"data info @/text.txt", 2, "text.txt"},
    {"data info @/broken_data", 2, "broken_data/dataset.json"},
    {"replay --checkpoint @/absent --steps 1", 2, "--checkpoint = "},
    {"replay --checkpoint @/text.txt --steps 1", 2, "text.txt"},
    {"replay --checkpoint @/folder --steps 1", 2, "manifest.json"},
    {"replay --checkpoint @/broken_checkpoint --steps 0", 2, "--steps"},
    {"replay --checkpoint @/broken_checkpoint --steps 1 --arm magic", 2, "--arm = magic"},
    {"replay --checkpoint @/broken_checkpoint --steps 1 --arm plan", 2, "--plan"},
    {"replay --checkpoint @/broken_checkpoint --steps 1 --end-checkpoint @/absent", 2,
     "--end-checkpoint = "},
    {"checkpoint verify @/absent", 2, "absent"},
    {"checkpoint verify @/text.txt", 2, "text.txt"},
    {"checkpoint list @/absent", 2, "absent"},
    {"checkpoint list @/text.txt", 2, "text.txt"},
    {"policy check @/absent", 2, "absent"},
    {"policy check @/folder", 2, "folder"},
    {"policy check @/garbage", 2, "garbage"},
    {"policy check @/slips.toml", 2, "budget_percent is a key of [verification]\ngnomon: "},
    {"policy check /dev/zero", 2, "/dev/zero: it is a device, not a regular file"},
    {"policy check", 2, "FILE is required"},
    {"policy show @/folder", 2, "folder"},
    {"plan check @/absent --layers 2", 2, "absent"},
    {"plan check @/folder --layers 2", 2, "folder"},
    {"plan check /dev/zero --layers 2", 2, "/dev/zero: it is a device, not a regular file"},
    {"plan check @/garbage --layers 2", 2, "garbage"},
    {"plan check @/plan.toml --layers 0", 2, "--layers"},
    {"plan check @/plan.toml --checkpoint @/absent", 2, "absent"},
    {"plan check @/plan.toml --checkpoint @/folder", 2, "folder"},
    {"plan check @/plan.toml --checkpoint @/text.txt", 2, "text.txt"},
    {"formats table --format e9m9", 2, "--format = e9m9"},
    {"formats table --format fp32", 2, "at most 16 bits"},
    {"formats cast --format e4m3", 2, "VALUE"},
    {"formats cast --format e4m3 1 one", 2, "VALUE = one"},
    {"bench step --size galactic", 2, "galactic"},
    {"bench step --threads 0", 2, "--threads"},
    {"bench gemm --device cpu --shapes llama-9", 2, "llama-70b"},
    {"bench gemm --device cpu --size 8x8", 2, "MxNxK"},
    {"bench gemm --device tpu", 2, "cuda"},
    {"bench block --device cpu --sizes 2T", 2, "6.7B"},
    {"bench kernels --device cpu --width 100", 2, "multiple of 128"},
};
INSTANTIATE_TEST_SUITE_P(OfTheUser, BadCommandLineTest, ::testing::ValuesIn(kMistakes));

// Port 1 of this machine: nobody listens there.
const std::vector<Case> kFailures = {
    {"runs --url http://127.0.0.1:1", 1, "cannot connect to the controller at http://127.0.0.1:1"},
    {"status small --url http://127.0.0.1:1", 1, "cannot connect"},
    {"windows small --url http://127.0.0.1:1", 1, "cannot connect"},
    {"decisions small --url http://127.0.0.1:1", 1, "cannot connect"},
    {"directives small --url http://127.0.0.1:1", 1, "cannot connect"},
    {"notices small --url http://127.0.0.1:1", 1, "cannot connect"},
    {"watch small --url http://127.0.0.1:1", 1, "cannot connect"},
    {"override small pause --reason r --url http://127.0.0.1:1", 1, "cannot connect"},
    {"checkpoint verify @/folder", 1, "manifest.json"},
    {"checkpoint verify @/broken_checkpoint", 1, "manifest.json"},
    {"replay --checkpoint @/broken_checkpoint --steps 1", 1, "manifest.json"},
};
INSTANTIATE_TEST_SUITE_P(OfTheEnvironment, BadCommandLineTest, ::testing::ValuesIn(kFailures));

}  // namespace
}  // namespace gnomon::cli
