# The trainer's process around the engine. gnomon_processes knows nothing of tensors: the verifier uses it too.
gnomon_library(gnomon_processes console.cc device_health.cc device_watch.cc directives.cc incarnation.cc inline_leases.cc lease_keeper.cc outbox.cc refused_log.cc reporter.cc shutdown.cc spool.cc)
target_link_libraries(gnomon_processes PUBLIC gnomon_client gnomon_protocol gnomon_base fmt::fmt spdlog::spdlog Threads::Threads
  PRIVATE Boost::json)

gnomon_library(gnomon_training checkpointer.cc config.cc config_controller.cc config_file.cc controller_absence.cc controller_link.cc directive_handler.cc inline_verifier.cc loop.cc loop_start.cc run_checkpoints.cc run_directory.cc run_state.cc unsent_checkpoints.cc)
target_link_libraries(gnomon_training PUBLIC gnomon_engine gnomon_processes gnomon_storage)

gnomon_cold(gnomon_processes)
gnomon_cold(gnomon_training)

gnomon_executable(gnomon-trainer main.cc)
target_link_libraries(gnomon-trainer PRIVATE gnomon_training gnomon_ranks)
gnomon_bundled(gnomon-trainer)
