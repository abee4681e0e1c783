//! Records from files, read as they are needed: NDJSON (one Extended JSON document a line), CSV with a header line, and
//! the BSON files that mongodump writes. A record that cannot be read names its line or its place.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::str::FromStr;

use sheaf_bson::{DocBuf, MAX_DEPTH, MAX_DOCUMENT_SIZE, Value, json, validate};

const BUFFER: usize = 1 << 20;
/// A line may hold a document of 16 MB, and Extended JSON is longer than BSON.
const LONGEST_LINE: u64 = 4 * MAX_DOCUMENT_SIZE as u64;

/// What a file of records holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// One document a line: `.ndjson`, `.jsonl`, `.json`.
    Ndjson,
    /// Comma-separated values with a header line: `.csv`.
    Csv,
    /// Documents one behind the other: `.bson`.
    Bson,
}

impl Format {
    /// By the end of the file's name.
    pub fn of(path: &Path) -> Result<Self, BadRecord> {
        path.extension()
            .and_then(|e| e.to_str())
            .unwrap_or_default()
            .parse()
            .map_err(|why| BadRecord { place: path.display().to_string(), why })
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name.to_ascii_lowercase().as_str() {
            "ndjson" | "jsonl" | "json" => Ok(Format::Ndjson),
            "csv" => Ok(Format::Csv),
            "bson" => Ok(Format::Bson),
            other => Err(format!("{other:?} is not a format of records; there are ndjson, csv and bson")),
        }
    }
}

/// A record that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct BadRecord {
    /// "orders.csv, line 17".
    pub place: String,
    /// What is wrong with it.
    pub why: String,
}

/// The records of one file in their order. After an error that leaves the place of the next record unknown, it ends.
pub struct Records {
    name: String,
    source: Source,
}

enum Source {
    Ndjson { lines: BufReader<Box<dyn Read + Send>>, line: u64, buffer: Vec<u8> },
    Csv { rows: Box<csv::Reader<Box<dyn Read + Send>>>, head: csv::StringRecord, row: csv::StringRecord },
    Bson { bytes: BufReader<Box<dyn Read + Send>>, offset: u64 },
    Ended,
}

impl Records {
    /// The records of a file.
    pub fn open(path: &Path, format: Format) -> Result<Self, BadRecord> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|e| BadRecord { place: name.clone(), why: e.to_string() })?;
        Records::read(name, format, Box::new(file))
    }

    /// The records of any source of bytes; `name` is for messages.
    pub fn read(name: String, format: Format, bytes: Box<dyn Read + Send>) -> Result<Self, BadRecord> {
        let source = match format {
            Format::Ndjson => {
                Source::Ndjson { lines: BufReader::with_capacity(BUFFER, bytes), line: 0, buffer: Vec::new() }
            }
            Format::Bson => Source::Bson { bytes: BufReader::with_capacity(BUFFER, bytes), offset: 0 },
            Format::Csv => {
                let mut rows = csv::ReaderBuilder::new().buffer_capacity(BUFFER).from_reader(bytes);
                let head = rows
                    .headers()
                    .map_err(|e| BadRecord { place: format!("{name}, line 1"), why: e.to_string() })?
                    .clone();
                Source::Csv { rows: Box::new(rows), head, row: csv::StringRecord::new() }
            }
        };
        Ok(Records { name, source })
    }

    fn bad(&self, place: impl std::fmt::Display, why: impl ToString) -> BadRecord {
        BadRecord { place: format!("{}, {place}", self.name), why: why.to_string() }
    }
}

impl Iterator for Records {
    type Item = Result<DocBuf, BadRecord>;

    fn next(&mut self) -> Option<Self::Item> {
        match &mut self.source {
            Source::Ndjson { .. } => self.next_line(),
            Source::Csv { .. } => self.next_row(),
            Source::Bson { .. } => self.next_bson(),
            Source::Ended => None,
        }
    }
}

impl Records {
    fn next_line(&mut self) -> Option<Result<DocBuf, BadRecord>> {
        loop {
            let Source::Ndjson { lines, line, buffer } = &mut self.source else { return None };
            buffer.clear();
            *line += 1;
            let line_number = *line;
            let read = lines.by_ref().take(LONGEST_LINE).read_until(b'\n', buffer);
            let parsed = match read {
                Ok(0) => return None,
                Ok(n) if n as u64 == LONGEST_LINE => Err("the line is longer than any document".to_owned()),
                Err(error) => Err(error.to_string()),
                Ok(_) => {
                    let text = std::str::from_utf8(buffer).map(str::trim);
                    match text {
                        // The byte order mark and empty lines are what editors leave behind.
                        Ok(text) if text.trim_start_matches('\u{feff}').is_empty() => continue,
                        Ok(text) => {
                            let document = json::parse_document(text.trim_start_matches('\u{feff}'));
                            return Some(
                                document.map_err(|e| self.bad(format_args!("line {line_number}"), e)),
                            );
                        }
                        Err(error) => return Some(Err(self.bad(format_args!("line {line_number}"), error))),
                    }
                }
            };
            self.source = Source::Ended;
            return Some(parsed.map_err(|why| self.bad(format_args!("line {line_number}"), why)));
        }
    }

    fn next_row(&mut self) -> Option<Result<DocBuf, BadRecord>> {
        let Source::Csv { rows, head, row } = &mut self.source else { return None };
        match rows.read_record(row) {
            Ok(false) => None,
            Ok(true) => Some(Ok(DocBuf::build(|document| {
                for (name, text) in head.iter().zip(row.iter()).filter(|(_, text)| !text.is_empty()) {
                    document.append(name, typed(text));
                }
            }))),
            Err(error) => {
                let line = error.position().map_or(0, csv::Position::line);
                let ended = matches!(error.kind(), csv::ErrorKind::Io(_));
                let bad = self.bad(format_args!("line {line}"), error);
                if ended {
                    self.source = Source::Ended;
                }
                Some(Err(bad))
            }
        }
    }

    fn next_bson(&mut self) -> Option<Result<DocBuf, BadRecord>> {
        let Source::Bson { bytes, offset } = &mut self.source else { return None };
        let at = *offset;
        match read_bson(bytes) {
            Ok(None) => None,
            Ok(Some(document)) => {
                *offset += document.len() as u64;
                // Its length was right, so the next one can be read even when this one is broken inside.
                Some(match validate(&document, MAX_DEPTH) {
                    Ok(_) => Ok(DocBuf::from_bytes(document)),
                    Err(error) => Err(self.bad(format_args!("byte {at}"), error)),
                })
            }
            Err(error) => {
                self.source = Source::Ended;
                Some(Err(self.bad(format_args!("byte {at}"), error)))
            }
        }
    }
}

fn read_bson(bytes: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    if bytes.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut head = [0; 4];
    bytes.read_exact(&mut head)?;
    let length = i32::from_le_bytes(head);
    if !(5..=MAX_DOCUMENT_SIZE as i64).contains(&i64::from(length)) {
        return Err(io::Error::other(format!("{length} is not the length of a document")));
    }
    let mut document = vec![0; length as usize];
    document[..4].copy_from_slice(&head);
    bytes.read_exact(&mut document[4..])?;
    Ok(Some(document))
}

/// A field of a CSV file is a number when it is written as one, else text. Numbers with leading zeros and plus signs
/// (postcodes, telephone numbers) are text.
fn typed(text: &str) -> Value<'_> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let zero_led = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
    if zero_led || !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return Value::String(text);
    }
    if let Ok(number) = text.parse::<i32>() {
        Value::Int32(number)
    } else if let Ok(number) = text.parse::<i64>() {
        Value::Int64(number)
    } else if let Ok(number) = text.parse::<f64>() {
        Value::Double(number)
    } else {
        Value::String(text)
    }
}

#[cfg(test)]
mod tests {
    use sheaf_bson::doc;

    use super::*;

    fn all(format: Format, bytes: &[u8]) -> Vec<Result<String, String>> {
        Records::read("f".to_owned(), format, Box::new(io::Cursor::new(bytes.to_vec())))
            .unwrap()
            .map(|r| r.map(|d| json::to_json(d.as_raw(), json::Style::Relaxed)).map_err(|bad| bad.place))
            .collect()
    }

    #[test]
    fn lines_of_json() {
        let text = "\u{feff}{\"_id\": 1, \"n\": {\"$numberLong\": \"7\"}}\n\n{broken\n  {\"_id\": 2}  \r\n{\"_id\": 3}";
        let seen = all(Format::Ndjson, text.as_bytes());
        assert_eq!(seen.len(), 4);
        assert_eq!(seen[1], Err("f, line 3".to_owned()));
        assert!(seen[0].as_ref().unwrap().contains('7'));
        assert!(seen[2].as_ref().unwrap().contains('2') && seen[3].as_ref().unwrap().contains('3'));
        assert_eq!(
            all(Format::Ndjson, b"{\"a\": 1}\n\xff\xfe\n{\"a\": 2}\n")[1],
            Err("f, line 2".to_owned())
        );
        assert!(all(Format::Ndjson, b"").is_empty());
    }

    #[test]
    fn rows_of_csv() {
        let text =
            "_id,name,zip,amount,none\n1,\"Rye, winter\",01234,2.5,\n2,two\n3,\"a\nb\",5000000000,-1,x\n";
        let mut rows = Records::read("f".into(), Format::Csv, Box::new(io::Cursor::new(text))).unwrap();
        let first = rows.next().unwrap().unwrap();
        let expected = doc! { "_id": 1, "name": "Rye, winter", "zip": "01234", "amount": 2.5 };
        assert_eq!(first.as_bytes(), expected.as_bytes());
        // A row that is too short is named, and the next one is read.
        assert_eq!(rows.next().unwrap().unwrap_err().place, "f, line 3");
        let third = rows.next().unwrap().unwrap();
        let expected = doc! { "_id": 3, "name": "a\nb", "zip": 5_000_000_000i64, "amount": -1, "none": "x" };
        assert_eq!(third.as_bytes(), expected.as_bytes());
        assert!(rows.next().is_none());
    }

    #[test]
    fn what_a_field_of_csv_is() {
        let is = |text: &str, value: Value<'_>| {
            assert_eq!(doc! { "v": typed(text) }.as_bytes(), doc! { "v": value }.as_bytes(), "{text}");
        };
        is("7", Value::Int32(7));
        is("-2147483649", Value::Int64(-2_147_483_649));
        is("1e3", Value::Double(1000.0));
        is("0.5", Value::Double(0.5));
        is("0", Value::Int32(0));
        for text in ["007", "+49", "-", "x1", "1.2.3", "NaN", "inf", " 1"] {
            is(text, Value::String(text));
        }
    }

    #[test]
    fn documents_of_bson() {
        let (one, two) = (doc! { "_id": 1 }, doc! { "_id": 2, "s": "x" });
        let mut bytes = one.as_bytes().to_vec();
        let mut broken = two.as_bytes().to_vec();
        let type_of_s = broken.len() - 10;
        broken[type_of_s] = 0x7e;
        bytes.extend_from_slice(&broken);
        bytes.extend_from_slice(two.as_bytes());
        let seen = all(Format::Bson, &bytes);
        assert!(seen[0].is_ok() && seen[2].is_ok() && seen.len() == 3);
        assert_eq!(seen[1], Err(format!("f, byte {}", one.as_bytes().len())));
        // Cut short, or with a length that cannot be: the end, named.
        let torn = all(Format::Bson, &bytes[..bytes.len() - 1]);
        assert!(torn.len() == 3 && torn[2].is_err());
        assert_eq!(all(Format::Bson, &[4, 0, 0, 0, 0]), [Err("f, byte 0".to_owned())]);
    }

    #[test]
    fn formats_by_name() {
        assert_eq!(Format::of(Path::new("a/b.JSONL")), Ok(Format::Ndjson));
        assert_eq!(Format::of(Path::new("b.csv")), Ok(Format::Csv));
        assert!(Format::of(Path::new("b.xml")).unwrap_err().to_string().contains("b.xml"));
    }
}
