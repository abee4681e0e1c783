//! Text indexes of any specification, texts of any bytes, and searches: words have weights, a document that matches has a score, and words by
//! which an index finds it; a word without marks and signs finds the text that it is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sheaf_bson::{DocBuf, RawDoc, Value, validate};
use sheaf_fuzz::generate::{Choices, DEPTH};
use sheaf_text::{Params, TextQuery, TextSpec, normal_fields, normal_key};

const LANGUAGES: &[&str] =
    &["english", "none", "german", "de", "french", "turkish", "russian", "fi", "nb", "portuguese", "ro", "hungarian", "xx"];

fuzz_target!(|data: &[u8]| {
    // Choices are at the front, the text and the search are what is left.
    let (front, rest) = data.split_at(data.len().min(48));
    let (text, search) = rest.split_at(rest.len() / 2);
    let (text, search) = (String::from_utf8_lossy(text), String::from_utf8_lossy(search));
    let mut choices = Choices::new(front);
    let Some(spec) = spec(&mut choices) else { return };
    let stored = choices.stored(DEPTH);
    let Value::Document(stored) = stored.as_value() else { return };
    let doc = DocBuf::build(|out| {
        out.append("a", &*text).append("language", choices.pick(LANGUAGES));
        out.append_all(stored);
    });
    check_terms(&spec, doc.as_raw());
    let language = choices.chance(64).then(|| choices.pick(LANGUAGES).to_owned());
    let (case_sensitive, diacritic_sensitive) = (choices.chance(64), choices.chance(64));
    for search in [search.into_owned(), format!("\"{text}\" -{text}"), text.into_owned()] {
        let params = Params { search, language: language.clone(), case_sensitive, diacritic_sensitive };
        search_for(&spec, doc.as_raw(), &params);
    }
});

fn spec(choices: &mut Choices<'_>) -> Option<TextSpec> {
    let mut key = DocBuf::new();
    key.append(choices.pick(&["a", "$**", "b", "a.b", "b.c"]), "text");
    if choices.chance(64) {
        key.append(choices.path(), "text");
    }
    let mut options = DocBuf::new();
    if choices.chance(128) {
        options.append("default_language", choices.pick(LANGUAGES));
    }
    if choices.chance(64) {
        let weights = DocBuf::new().with(choices.path(), &choices.number());
        options.append("weights", &weights);
    }
    if choices.chance(64) {
        options.append("language_override", choices.path());
    }
    if choices.chance(96) {
        options.append("textIndexVersion", choices.pick(&[1, 2, 3, 4]));
    }
    let key = normal_key(key.as_raw()).ok()?;
    let fields = normal_fields(options.as_raw(), key.as_raw()).ok()?;
    assert_eq!(validate(fields.as_bytes(), 100), Ok(fields.as_bytes().len()));
    Some(TextSpec::read(fields.as_raw()).expect("what is kept is read again"))
}

fn check_terms(spec: &TextSpec, doc: RawDoc<'_>) {
    let Ok(terms) = spec.terms(doc) else { return };
    for (term, weight) in terms {
        assert!(weight.is_finite() && weight > 0.0, "{term:?} has the weight {weight}");
    }
}

fn search_for(spec: &TextSpec, doc: RawDoc<'_>, params: &Params) {
    let Ok(query) = TextQuery::parse(params, spec) else { return };
    let Ok(Some(score)) = query.score(spec, doc) else { return };
    assert!(score.is_finite() && score > 0.0, "{params:?} has the score {score}");
    let terms = spec.terms(doc).expect("the words were there a moment ago");
    assert!(query.bounds().any(|word| terms.contains_key(word)), "no index finds {doc:?} by {params:?}");
}
