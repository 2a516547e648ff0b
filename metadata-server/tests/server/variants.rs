//! The names of all commands and outcomes: a new variant does not compile until it is named here,
//! and the golden bytes then ask for a sample of it.

use millrace_metadata_server::command::{Command, Outcome};

/// Names every variant of an enum, and makes the list of those names.
macro_rules! variants {
    ($function:ident, $list:ident, $type:ident { $($variant:ident),* $(,)? }) => {
        /// The name of the variant.
        pub(crate) fn $function(value: &$type) -> &'static str {
            match value {
                $($type::$variant { .. } => stringify!($variant),)*
            }
        }

        /// Every variant's name.
        pub(crate) const $list: &[&str] = &[$(stringify!($variant),)*];
    };
}

variants!(
    command_name,
    COMMANDS,
    Command {
        Format,
        SetFeatureLevel,
        ReserveIds,
        OpenSession,
        CloseSession,
        NewKey,
        RegisterHost,
        TargetBlank,
        Reclaimed,
        Trimmed,
        Create,
        MakeLink,
        Remove,
        Rename,
        SetAttributes,
        OpenWrite,
        CloseWrite,
        DropReader,
        Commit,
        SetXattr,
        RemoveXattr,
        SetDefaults,
        AddLink,
        BeginLinkRemoval,
        ForgetEntries,
        RemoveLink,
        ImportEntries,
        MarkDirectoryListed,
        AddJob,
        UpdateJob,
        BeginExport,
        RecordUpload,
        CompleteExport,
        AbortExport,
        ObserveObject,
        ResolveConflict,
        SetLinkOptions,
        DropDirectory,
        KeepReader,
        BeginRun,
        Distrust,
        Trust,
        ReclaimOrphans,
        Restored,
        KeepNames,
        CreateMasked,
        CreateUnnamed,
        Repair,
        NoteReads,
        SetPin,
        AddSelectedJob,
        Loss,
        SetAutoExport,
        SetFetchPolicy,
        ReopenExport,
        AddPublication,
        AddJobWithOptions,
        NoteJobDetail,
        RecordCopy,
        ForgetCopy,
        SetDeletePropagation,
        ForgetDeletion,
        NoteLeftOut,
        SetRefreshInterval,
        CloseWrites,
        Publish,
        PublishInline,
        Spilled,
        AddUnusedJob,
        CloseUnwritten,
        AddJobByState,
        ObjectDeleted,
        ForgetSaved,
        BeginLinkDiscard,
        NoteShown,
        SweepWhiteouts,
    }
);

variants!(
    outcome_name,
    OUTCOMES,
    Outcome {
        Done,
        Inode,
        Shrunk,
        Session,
        Key,
        Link,
        Job,
        Imported,
        Frozen,
        Exported,
        Observed,
        Queued
    }
);
