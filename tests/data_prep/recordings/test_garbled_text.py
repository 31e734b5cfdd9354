"""Text that was decoded with another encoding than its own is found; right text of many languages is not."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from overtone.data_prep.recordings.garbled_text import LOST, find_garbled_texts

ITALIAN = [
    "La conferenza non può essere prolungata.",
    "Perché la città è così lontana?",
    "Premere uno per continuare.",
    "Quell'operatore è già collegato.",
    "Il numero sarà più lungo.",
    "C’è una chiamata: la qualità è buona.",
]
RUSSIAN = ["Этот оператор уже вошёл.", "Введите номер оператора.", "Вы позвонили нам вчера.", "Ноль", "Пауза."]
RIGHT = [
    *ITALIAN,
    *RUSSIAN,
    "L'été à la plage, où êtes-vous ? là-bas",
    "Straße über Fluß, Größe ärgert Öl",
    "Žluťoučký kůň úpěl ďábelské ódy",
    "Zażółć gęślą jaźń, Łódź",
    "Tất cả mọi người sinh ra đều được tự do và bình đẳng",
    "日本語のテキストです。",
    "人人生而自由,在尊严和权利上一律平等。",
    "모든 인간은 태어날 때부터 자유로우며",
    "“Hello,” she said — it’s £5… what? no",
    "À LA LIBERTÉ»",
    "Ευρωπαϊκή Ένωση, 5 µm και 3 kΩ",
    "Çağrı merkezi şu anda meşgul, İstanbul'da",
    "Það er gott, Ætla þú",
    "أهلا وسهلا بكم",
    "כל בני האדם נולדו",
    "สวัสดีชาวโลก",
    "सभी मनुष्यों को गौरव",
    "Really? she asked. Yes?No!",
    "https://www.example.org/watch?v=abc and a@b.c?x",
    "iPhone и МТС, ДНКаза",
    "Wait... what?! Who??",
    "L·l col·lecció, Île-de-France",
    "Où? là-bas",
    "Nom de l’étiquette ou de l’éditeur",
    "“Él vino”, “Ésa es”, «Él»",
    "Der Spaß… der Fluß–",
    "未知",
    "Tシャツを着た。iPhoneとMacです。",
    "PC방에서 LG전자 앱을 썼다",
    "ใช้Facebookได้",
]


@pytest.mark.parametrize("language", ["", "italian", "english"])
def test_right_texts_are_not_found(language: str) -> None:
    assert find_garbled_texts(RIGHT, language).found == {}
    assert [text for text in RIGHT if find_garbled_texts([text], language).found] == []


PACKAGES = {"en": "english", "fr": "french", "es": "spanish", "it": "italian", "ru": "russian"}


@pytest.mark.parametrize("code", sorted(PACKAGES))
def test_the_texts_of_telephone_prompts_are_not_found(code: str) -> None:
    path = Path(f"/usr/share/doc/asterisk-core-sounds-{code}/core-sounds-{code}.txt.gz")
    if not path.is_file():
        pytest.skip(f"needs the Debian package asterisk-core-sounds-{code}")
    texts = [line.partition(":")[2].strip() for line in gzip.decompress(path.read_bytes()).decode().split("\n")]
    assert len(texts) > 300 and find_garbled_texts(texts, PACKAGES[code]).found == {}


OF_CODE_PAGES = {
    "czech": ["Přijď zítra večer.", "Děkuji vám.", "Dobrý den, těší mě."],
    "turkish": ["Çağrı merkezi şu anda meşgul.", "Günaydın, nasılsınız?", "Yağmur yağıyor."],
    "hungarian": ["Őszintén örülök.", "Jövő hétfőn eső lesz.", "A nő erős."],
    "romanian": ["Bună dimineaţa tuturor.", "Ştiu că ţara e mare.", "Mâine va ploua în Bucureşti."],
    "spanish": ["¿Dónde está el niño?", "Mañana será otro día.", "El señor Peña llegó."],
    "italian": ["La città è così lontana.", "Non può essere.", "Sarà più lungo."],
}


@pytest.mark.parametrize(
    ("language", "own", "shown"),
    [
        ("czech", "cp1250", "cp1252"),
        ("turkish", "cp1254", "cp1252"),
        ("hungarian", "cp1250", "cp1252"),
        ("romanian", "cp1250", "cp1252"),
        ("spanish", "cp1252", "cp1250"),
        ("italian", "cp1252", "cp1250"),
    ],
)
def test_letters_that_the_language_lacks_are_found(language: str, own: str, shown: str) -> None:
    texts = OF_CODE_PAGES[language]
    wrong = misread(texts, own, shown)
    found = find_garbled_texts(wrong, language).found
    assert set(found) == {0, 1, 2} and f"letters that {language} lacks, as of {own} that was read as {shown}" in found.values()
    assert find_garbled_texts([*texts, wrong[1]], language).found == {}, "a name of another language among right texts"
    assert find_garbled_texts(texts, language).found == {}


@pytest.mark.parametrize(
    "text", ["Donâ€™t go.", "don‚Äôt go", "Itís a nice day, isnít it?", "caf\\u00e9", "caf=C3=A9 is open", "caf%C3%A9 is open"]
)
def test_certain_signs_in_a_single_text(text: str) -> None:
    assert find_garbled_texts([text, "Plain."], "english").found.keys() == {0}


@pytest.mark.parametrize(
    ("own", "shown"), [("utf-8", "cp949"), ("cp1252", "gb18030"), ("mac-roman", "cp949"), ("utf-8", "big5"), ("cp1252", "cp437")]
)
def test_characters_of_other_scripts_inside_latin_words_are_found(own: str, shown: str) -> None:
    texts = ["Schöne Grüße aus Köln.", "Fußgänger überqueren Straßen.", "Er könnte später kommen."]
    assert find_garbled_texts(misread(texts, own, shown), "german").found.keys() == {0, 1, 2}


def misread(texts: list[str], own: str, shown: str) -> list[str]:
    return [text.encode(own, "replace").decode(shown, "replace") for text in texts]


@pytest.mark.parametrize(
    ("texts", "language", "own", "shown", "advice"),
    [
        (ITALIAN, "italian", "utf-8", "cp1252", "UTF-8 that was read as cp1252"),
        (ITALIAN, "italian", "utf-8", "latin-1", "UTF-8 that was read as "),
        (ITALIAN, "", "utf-8", "mac-roman", "UTF-8 that was read as mac-roman"),
        (ITALIAN, "italian", "cp1252", "utf-8", "save the text again as UTF-8"),
        (ITALIAN, "italian", "mac-roman", "cp1252", "save the text again as UTF-8"),
        (ITALIAN, "italian", "cp1252", "cp437", "save the text again as UTF-8"),
        (RUSSIAN, "russian", "cp1251", "latin-1", "cp1251 that was read as latin-1"),
        (RUSSIAN, "", "cp1251", "cp1252", "cp1251 that was read as "),
        (RUSSIAN, "russian", "koi8-r", "cp1251", "koi8-r that was read as cp1251"),
        (RUSSIAN, "russian", "cp866", "cp1251", "cp866 that was read as cp1251"),
        (RUSSIAN, "russian", "utf-8", "cp1251", "UTF-8 that was read as cp1251"),
        (["こんにちは、元気ですか", "世界はひろい"], "japanese", "cp932", "latin-1", "cp932 that was read as latin-1"),
        (["你好世界，今天天气很好"], "chinese", "gb18030", "latin-1", "gb18030 that was read as latin-1"),
        (["Όλοι οι άνθρωποι γεννιούνται ελεύθεροι"], "greek", "cp1253", "latin-1", "cp1253 that was read as latin-1"),
    ],
)
def test_wrong_decodings_are_found_with_their_encoding(texts, language, own, shown, advice) -> None:
    wrong = misread(texts, own, shown)
    found = find_garbled_texts(wrong, language)
    assert found.found.keys() == {index for index, (text, read) in enumerate(zip(texts, wrong, strict=True)) if text != read}
    assert advice in found.advice


def test_letters_that_became_question_marks_are_found() -> None:
    lost = [text.encode("ascii", "replace").decode() for text in ITALIAN]
    found = find_garbled_texts(lost, "italian")
    assert found.found == dict.fromkeys((0, 1, 3, 4, 5), LOST) and "those behind ? are gone" in found.advice
    assert find_garbled_texts(["Il n?mero giusto."]).found == {0: LOST}
    assert find_garbled_texts(["??? ????? ??", "Who??"], "russian").found == {0: LOST}
    questions = ["Davvero? disse lui.", "Che cosa? no, grazie.", "Sono qui.", "La città è bella."]
    assert find_garbled_texts(questions, "italian").found == {}, "with accents in other texts of the file they are questions"


def test_a_weak_sign_in_one_of_many_texts_is_none() -> None:
    texts = [f"La città numero {number} è bella." for number in range(40)]
    assert find_garbled_texts([*texts, "Il sito eBayÈ qui."], "italian").found == {}
    assert len(find_garbled_texts([*texts[:20], *["perchÈ", "cosÌ e cittÀ"] * 2], "italian").found) == 4
