//! `millrace job report ID [--format csv] [--out FILE | --to KEY|URL]`: what became of each file.

use std::io::{self, BufRead as _, Write};

use anyhow::Context as _;
use millrace_protocol::job_options::{FetchReport, PutReport};
use millrace_types::ByteLen;
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::{
    arguments::{JobReportArguments, ReportFormat},
    connection::Connection,
    context::{CALLER, Context},
    exit::{Exit, Misuse},
    output::shown,
    whole_file::{self, Present},
};

/// The file of a report.
#[derive(Serialize)]
struct WrittenReport {
    file: String,
    size_bytes: u64,
}

/// Where a report is.
#[derive(Serialize)]
struct PutReportReport {
    url: String,
    size_bytes: u64,
}

/// One file.
#[derive(Serialize, Deserialize)]
struct Line {
    path: String,
    outcome: String,
    bytes: u64,
    error: Option<String>,
}

/// Fetches and prints; FILE appears when it is whole. With `--json` it says where the report went;
/// the lines of one that goes nowhere are values already.
pub(crate) async fn run(context: &Context, arguments: JobReportArguments) -> anyhow::Result<Exit> {
    let JobReportArguments { format, out, to, job } = arguments;
    let first = FetchReport { caller: CALLER, id: job.id, offset: 0 };
    if context.globals.json && format == ReportFormat::Csv && out.is_none() && to.is_none() {
        let text = "a table is no JSON: leave out --json or --format csv, or name a file: --out";
        return Err(Misuse(text.to_owned()).into());
    }
    if let Some(file) = out {
        let present = Present::Kept("name a new file");
        let written = whole_file::write(&file, present, async |partial: &mut NamedTempFile| {
            let connection = context.anywhere().await?;
            let printed = print(&connection, first, format, partial).await;
            printed.with_context(|| format!("cannot write {}", file.display()))?;
            anyhow::Ok(partial.as_file().metadata()?.len())
        });
        let size_bytes = written.await?;
        let report = WrittenReport { file: file.display().to_string(), size_bytes };
        let size = ByteLen(size_bytes);
        context.output.result(&report, || format!("{}: {size}", shown(&report.file)))?;
        return Ok(Exit::Done);
    }
    let connection = context.anywhere().await?;
    if let Some(to) = to {
        let table = format == ReportFormat::Csv;
        let put = connection.request(&PutReport { caller: CALLER, id: job.id, to, table }).await?;
        let report = PutReportReport { url: put.url, size_bytes: put.size };
        context.output.result(&report, || format!("the report is {}", report.url))?;
        return Ok(Exit::Done);
    }
    let mut out = io::stdout().lock();
    match print(&connection, first, format, &mut out).await {
        // A reader that has seen enough.
        Err(error) if is_broken_pipe(&error) => {}
        other => other?,
    }
    Ok(Exit::Done)
}

async fn print(
    connection: &Connection,
    mut request: FetchReport,
    format: ReportFormat,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    if format == ReportFormat::Csv {
        out.write_all(b"path,outcome,bytes,error\n")?;
    }
    loop {
        let page = connection.request(&request).await?;
        match format {
            ReportFormat::Jsonl => out.write_all(&page.lines)?,
            ReportFormat::Csv => write_rows(out, &page.lines)?,
        }
        match page.next {
            Some(next) => request.offset = next,
            None => break,
        }
    }
    Ok(out.flush()?)
}

fn write_rows(out: &mut impl Write, lines: &[u8]) -> anyhow::Result<()> {
    let mut table = csv::WriterBuilder::new().has_headers(false).from_writer(out);
    for line in lines.lines() {
        let row: Line = serde_json::from_str(&line?).context("a line of the report is damaged")?;
        table.serialize(row)?;
    }
    Ok(table.flush()?)
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let is_broken = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
    error.chain().any(|cause| cause.downcast_ref::<io::Error>().is_some_and(is_broken))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_quoted_where_they_must_be() {
        let lines = br#"{"path":"/set/a,b","outcome":"done","bytes":7}
{"path":"/set/c","outcome":"failed","bytes":0,"error":"it said \"no\""}
"#;
        let mut out = Vec::new();
        write_rows(&mut out, lines).unwrap();
        let expected = "\"/set/a,b\",done,7,\n/set/c,failed,0,\"it said \"\"no\"\"\"\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert!(write_rows(&mut Vec::new(), b"{").is_err());
    }
}
