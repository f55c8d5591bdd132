"""The same cases on torch's loader and on ours: order, labels, lengths, shapes, types, random state, errors.

Each row of what the world expects of a DataLoader and an ImageFolder, and the test that holds it:

torch typing, DataLoader[T]               test_arguments: test_the_class_can_be_subscripted
torch arguments, errors, attributes       test_arguments: signatures, BAD, test_attributes_that_may_not_change
torch __setattr__                         test_arguments: test_attributes_that_may_not_change
torch random draws (base seed, sampler)   test_order: test_global_random_state_...
torch default_collate, kept batches       test_batch: test_a_batch_is_torchs_list, test_batches_that_are_kept_...
torch samplers, length, shards            test_order: CASES, test_distributed_sampler_..., DATASETS
torchvision DatasetFolder, late changes   test_changes; test_dataset: attributes, subclasses, v2 wrapper, copies
Lightning _update_dataloader              test_lightning: test_lightning_injects_a_sampler
Lightning ..._resolve_sampler             test_lightning: custom batch sampler, index sampler
Lightning _replace_dunder_methods         test_lightning: replays_what_a_subclass_was_made_with
Lightning worker_init_fn, set_epoch       test_lightning: sets_worker_init_fn_and_epoch
Lightning CombinedLoader                  test_lightning: combined_loader; test_processes: what is freed
Lightning has_len                         test_arguments: test_len_of_an_iterable_data_set_is_torchs
Lightning _Stateful                       test_resume_frameworks: test_lightning_resumes_from_its_checkpoint
Lightning default_collate by hand         test_batch: test_default_collate_passed_by_hand_is_the_default
Accelerate prepare, skip_first_batches    test_frameworks: accelerate_*; test_a_sampler_set_in_place
HF Trainer                                test_frameworks and test_resume_frameworks: test_hf_trainer_...
Ignite update_dataloader                  test_frameworks: test_ignite_updates_a_dataloader; test_arguments: attributes
Ignite Engine.run                         test_frameworks: test_ignite_epochs_of_another_length
timm create_loader, PrefetchLoader        test_frameworks: test_timm_create_loader, test_timm_transform_set_...
timm MultiEpochsDataLoader                test_frameworks: test_timm_multi_epochs
Ray _WrappedDataLoader                    test_frameworks: test_ray_takes_over_the_attributes, by doing what it does
Composer DataSpec                         test_frameworks: test_composer_asks_..., by doing what it does
torchdata StatefulDataLoader              test_frameworks: test_torchdata_...; skipped where it is not installed
fastai                                    no test: its own DataLoader takes the folder alone

Archives go through the same tests in test_storages; cache= is in test_cache. Iteration is in test_iteration, threads,
fork and memory in test_processes; bad and odd files in test_errors and test_odd_files; fallbacks, a machine without
DALI and the import rules in test_fallback.
"""
